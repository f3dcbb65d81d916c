"""Compare a few steps over all replicas with the same steps on one device.

In: a `DistributedModel` and data. Out: a table of differences, or a ValueError. Both trainings start from the model's
state, and the model gets this state back. `DistributedModel.verify` calls this module, and has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from autodist_core.training import Entry
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.tracing import optimizers_of
from autodist_keras.capture.variables import ModelVariables
from autodist_keras.reports.rounding import FACTOR, difference, last_bits_changed
from autodist_keras.training.exclusive import claimed
from autodist_keras.training.first_batches import first_batches

TOLERANCE = {"float64": 1e-12, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}
_COMPARED = ("model", "optimizer", "seed")
"""The kinds of variables that the table compares. The variables of metrics are not compared, but they are restored."""
_UNEXPLAINED = (
    "Nothing in the plan explains it. If no layer or loss of the model mixes the examples of a batch (a mean over the "
    "batch axis, say) or takes rows by their position, it is a defect worth reporting."
)


def verify(distributed: Any, x: Any, y: Any, steps: int, sample_weight: Any = None, class_weight: Any = None) -> str:
    """Train `steps` steps both ways from the model's state, restore it, and return a table of differences.

    If variables differ by more than rounding and no note of the plan says why, a ValueError names them.
    `DistributedModel.verify` has an example.
    """
    model, driver = distributed.model, distributed._driver
    driver.require_idle("verify")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"verify(steps={steps!r}): expected a whole number of steps, at least 1.")
    batches = first_batches("verify", model, driver, x, y, sample_weight, class_weight, steps)
    with claimed(model, driver):
        # The capture makes the missing variables of model and optimizers. So both ways start from one complete state.
        captured = driver.captured_for(batches[0])
        entries = ModelVariables(model, optimizers_of(model)).entries
        start, compressors = _values(entries), distributed.compressor_state()

    def on_one_device(begin: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The variables after the same steps on one device, from other values. The model's values are restored."""
        with claimed(model, driver):
            try:
                _restore(entries, begin)
                with hook(model, "train_function", None):
                    # Keras's own function, even if the user replaced it on the model.
                    _train(model, partial(type(model).make_train_function, model), batches)
                return _values(entries)
            finally:
                _restore(entries, start)

    alone = on_one_device(start)
    try:
        with driver.running("fit"):
            _train(model, model.make_train_function, batches)
        together = _values(entries)
    finally:
        _restore(entries, start)
        distributed.set_compressor_state(compressors)
    explanation = Explanation(distributed.inexact, (*captured.remarks, *captured.notes.unknown))
    compared = tuple(entry for entry in entries if entry.spec.kind in _COMPARED)
    _require_finite(alone, len(batches))
    found = _differences(compared, alone, together)
    rounding: dict[str, float] = {}
    if not explanation.inexact and any(each.is_wrong for each in found):
        weights = {entry.spec.name: start[entry.spec.name] for entry in entries if entry.spec.kind == "model"}
        disturbed = on_one_device(start | last_bits_changed(weights))
        rounding = {each.name: difference(alone[each.name], disturbed[each.name]) for each in found}
    return _table(found, rounding, len(batches), explanation)


def _train(model: Any, make_train_function: Callable[..., Any], batches: list[Any]) -> None:
    """Train on these batches with the function that Keras's loop would call."""
    make_train_function(force=True)
    feed = iter(batches)
    for _ in range(0, len(batches), model.steps_per_execution):
        model.train_function(feed)


@dataclass(frozen=True)
class Explanation:
    """The plan's reasons for other numbers than one device's."""

    inexact: tuple[str, ...]
    """Reasons that are certain."""
    remarks: tuple[str, ...]
    """Reasons that depend on what the model's losses and steps compute."""


def _values(entries: tuple[Entry, ...]) -> dict[str, np.ndarray]:
    return {entry.spec.name: entry.read() for entry in entries}


def _restore(entries: tuple[Entry, ...], values: dict[str, np.ndarray]) -> None:
    for entry in entries:
        entry.write(values[entry.spec.name])


@dataclass(frozen=True)
class Difference:
    """How far one variable is apart after training both ways."""

    name: str
    dtype: str
    size: float

    @property
    def is_wrong(self) -> bool:
        """Whether it is more than the rounding of a variable that is well determined."""
        return not self.size <= TOLERANCE[self.dtype]


def _require_finite(alone: dict[str, np.ndarray], steps: int) -> None:
    lost = [name for name, value in alone.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if lost:
        raise ValueError(
            f"on one device {', '.join(lost[:3])} {'is' if len(lost) == 1 else 'are'} not finite after {steps} steps, "
            "so there is nothing to compare. Verify with data and a learning rate with which the plain model trains."
        )


def _differences(
    entries: tuple[Entry, ...], alone: dict[str, np.ndarray], together: dict[str, np.ndarray]
) -> list[Difference]:
    return [
        Difference(entry.spec.name, entry.spec.dtype, difference(alone[entry.spec.name], together[entry.spec.name]))
        for entry in entries if entry.spec.dtype in TOLERANCE and alone[entry.spec.name].size
    ]


def _table(found: list[Difference], rounding: dict[str, float], steps: int, explanation: Explanation) -> str:
    """The table, with a note on each variable of which one device has nothing but rounding."""
    lines = [f"{steps} steps on one device and over all replicas; max|a-b| / max|a|:"]
    width = max((len(each.name) for each in found), default=0)
    wrong = []
    for each in found:
        line = f"  {each.name:{width}}  {each.size:.1e}"
        if each.is_wrong and each.size <= FACTOR * rounding.get(each.name, 0.0):
            line += f"  rounding: on one device {rounding[each.name]:.1e}, if weights differ in their last bit"
        elif each.is_wrong:
            wrong.append(f"{each.name} ({each.size:.1e}, {each.dtype} allows {TOLERANCE[each.dtype]:.0e})")
        lines.append(line)
    if explanation.inexact:
        return "\n".join([*lines, *(f"  note: {note}" for note in explanation.inexact)])
    if wrong:
        said = "; ".join(explanation.remarks)
        raise ValueError(
            f"training over replicas differs from one device in {'; '.join(wrong)}. "
            + (f"The plan says: {said}." if said else _UNEXPLAINED)
        )
    return "\n".join(lines)
