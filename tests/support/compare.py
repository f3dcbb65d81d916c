"""What a training left behind, by name, and the one tolerance that two trainings are compared with."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from autodist_keras.training.step_functions import SIZED

MISCOUNTED = re.compile(r"result/(?!val_)\w+_loss(/\d+)?") if SIZED else re.compile("(?!)")
"""Losses of single outputs as Keras 3.16 logs them on one device: it counts 10, 10 and 6 examples as 10, 10 and 1.

`test_uses.py` of the seams shows this with plain Keras.
"""
TOLERANCE = 1e-12
"""Largest allowed difference of two tensors, relative to the largest entry of the expected one."""


@dataclass(frozen=True)
class Trained:
    """What a program returned, and the weights and the optimizers' variables that it left in the model."""

    result: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The weights and the optimizers' variables, without the result."""
        return {**self.weights, **self.optimizer}

    @property
    def everything(self) -> dict[str, np.ndarray]:
        """All of it in one dict."""
        return flat(vars(self))


def named(variables: Iterable) -> dict[str, np.ndarray]:
    """Values by path; a path that occurs again gets a counter, in the order of the variables."""
    values: dict[str, np.ndarray] = {}
    for variable in variables:
        name, count = variable.path, 1
        while name in values:
            name, count = f"{variable.path}#{count}", count + 1
        values[name] = variable.numpy()
    return values


def in_order(*variables: Iterable) -> dict[str, np.ndarray]:
    """Values by position, for models whose variables have other names, as copies and loaded models have."""
    return {str(index): variable.numpy() for index, variable in enumerate(chain(*variables))}


def state_in_order(model: Any) -> dict[str, np.ndarray]:
    """The weights and the optimizer's variables by position."""
    return in_order(model.weights, model.optimizer.variables)


def flat(values: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Nested dicts and lists as one dict of arrays."""
    if isinstance(values, Mapping):
        items = [(str(key), value) for key, value in values.items()]
    elif isinstance(values, (list, tuple)):
        items = [(str(index), value) for index, value in enumerate(values)] or [("empty", 1)]
    else:
        return {prefix: np.asarray(values)}
    return {name: leaf for key, value in items for name, leaf in flat(value, f"{prefix}/{key}".lstrip("/")).items()}


def relative_error(expected, actual) -> float:
    """max|a-b| / max|a|; infinite where the shapes differ, where only one is finite, or where zero became something."""
    expected, actual = np.asarray(expected), np.asarray(actual)
    if expected.shape != actual.shape:
        return float("inf")
    if np.array_equal(expected, actual, equal_nan=expected.dtype.kind == "f" and actual.dtype.kind == "f"):
        return 0.0
    if expected.dtype.kind not in "fiub" or not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        return float("inf")
    scale = np.max(np.abs(expected.astype("float64")), initial=0.0)
    difference = np.max(np.abs(expected.astype("float64") - actual.astype("float64")))
    return float(difference / scale) if scale else float("inf")


def differences(expected: Mapping, actual: Mapping, tolerance: float = TOLERANCE) -> list[str]:
    """Every name whose tensors differ by more than the tolerance, as text; names that only one side has come first."""
    found = [f"{name}: only in the {side}" for side, name in _one_sided(expected, actual)]
    for name in expected.keys() & actual.keys():
        error = relative_error(expected[name], actual[name])
        if not (error <= tolerance or MISCOUNTED.fullmatch(name)):
            found.append(f"{name}: relative difference {error:.2e}, allowed {tolerance:.0e}")
    return found


def _one_sided(expected: Mapping, actual: Mapping) -> list[tuple[str, str]]:
    missing = [("expected", name) for name in sorted(expected.keys() - actual.keys())]
    return missing + [("actual", name) for name in sorted(actual.keys() - expected.keys())]


def assert_same(expected: Mapping, actual: Mapping, tolerance: float = TOLERANCE) -> None:
    """Fails with every name that differs."""
    assert expected, "nothing to compare"
    found = differences(expected, actual, tolerance)
    assert not found, "\n" + "\n".join(found)


def assert_equally_trained(expected: Trained, actual: Trained, tolerance: float = TOLERANCE) -> None:
    """Everything that two trainings left behind is within the tolerance, and finite."""
    assert_finite(expected)
    assert_same(expected.everything, actual.everything, tolerance)


def assert_finite(trained: Trained) -> None:
    """A training that diverged compares equal to any other that did, so it may not be an expectation."""
    for name, value in trained.everything.items():
        assert value.dtype.kind not in "fc" or np.isfinite(value).all(), f"{name} is not finite"


def worst_error(expected: Trained, actual: Trained) -> float:
    """The largest relative difference over everything that two trainings left behind."""
    return max(relative_error(value, actual.everything[name]) for name, value in expected.everything.items())
