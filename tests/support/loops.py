"""One loop run twice from one seed: with `tf.function` on one device, and marked on replicas of this process.

A *loop* takes what has `function` and `scope`: a `Plain`, or an `AutoDist`. It makes its variables, marks its
functions, calls them, and returns numbers by name, nested as it likes, the variables' values included.

    assert_equal_loops(loop, strategy="PS", replicas=3)
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core import AutoDist
from autodist_core.strategy import StrategyBuilder
from tests.support.compare import TOLERANCE, assert_same, flat
from tests.support.once import once
from tests.support.strategies import on_local_replicas

SEED = 20
BATCHES = (13, 13, 2)
"""Sizes of batches: no two or three replicas have slices of one size, and of two examples one of three has none."""

EVEN = (9, 9, 9)
"""Batches of one size, which need one graph: for loops that are not about sizes."""

Loop = Callable[[Any], Any]


class Plain:
    """What has the methods of an `AutoDist`, and runs a loop on one device."""

    def function(self, function: Callable | None = None, *, whole: Iterable[str] = ()) -> Any:
        """The function as a `tf.function`, which is traced once for batches of all sizes."""
        if function is None:
            return self.function
        traced = tf.function(function, reduce_retracing=True)

        def called(*arguments: Any, **named: Any) -> Any:
            of_rows, named_rows = tf.nest.map_structure(of_any_size, (arguments, named))
            traced.get_concrete_function(*of_rows, **named_rows)
            return traced(*arguments, **named)

        return called

    def scope(self) -> AbstractContextManager:
        """Nothing."""
        return nullcontext(self)


def of_any_size(value: Any) -> Any:
    """What stands for an array of any number of rows where a function is traced; another value stands for itself.

    >>> of_any_size(np.ones((4, 2)))
    TensorSpec(shape=(None, 2), dtype=tf.float64, name=None)
    """
    if isinstance(value, tf.Tensor | np.ndarray) and value.ndim:
        return tf.TensorSpec([None, *value.shape[1:]], value.dtype)
    return value


def autodist(strategy: str | StrategyBuilder | None = "PS", *, replicas: int = 2, **settings) -> AutoDist:
    """An `AutoDist` on so many logical CPUs; every replica has a memory of its own unless told otherwise."""
    return AutoDist(**on_local_replicas(strategy, replicas, settings))


def run(loop: Loop, front: Any) -> dict[str, np.ndarray]:
    """What a loop returns, with the seeds at their beginning."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)
    return flat(loop(front))


def run_plain(loop: Loop) -> dict[str, np.ndarray]:
    """What a loop returns on one device; computed once."""
    return once(_run_plain, loop)


def _run_plain(loop: Loop) -> dict[str, np.ndarray]:
    return run(loop, Plain())


def run_marked(
    loop: Loop, strategy: str | StrategyBuilder | None = "PS", replicas: int = 3, **settings
) -> dict[str, np.ndarray]:
    """What a loop returns on replicas."""
    with autodist(strategy, replicas=replicas, **settings) as front:
        return run(loop, front)


def assert_equal_loops(
    loop: Loop, strategy: str | StrategyBuilder | None = "PS", replicas: int = 3, tolerance: float = TOLERANCE,
    **settings,
) -> dict[str, np.ndarray]:
    """All that a loop returns is the same on one device and on replicas. Gives what it is."""
    expected = run_plain(loop)
    for name, value in expected.items():
        assert value.dtype.kind not in "fc" or np.isfinite(value).all(), f"{name} is not finite"
    assert_same(expected, run_marked(loop, strategy, replicas, **settings), tolerance)
    return expected


def assert_exact_plans(*steps: Any) -> None:
    """The plans of marked functions, which take the examples, name nothing that is not exact."""
    for step in steps:
        plan = step.plan(*next(batches(*examples()))) if hasattr(step, "plan") else ""
        assert "not exact" not in plan and "not known" not in plan, plan


class Net:
    """A small network of plain variables; it gives logits of three classes."""

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self.kernel = tf.Variable(random.normal(size=(5, 7)), name="kernel")
        self.bias = tf.Variable(np.zeros(7), name="bias")
        self.out = tf.Variable(random.normal(size=(7, 3)), name="out")
        self.variables = [self.kernel, self.bias, self.out]

    def __call__(self, x: Any) -> Any:
        """The logits."""
        return tf.tanh(x @ self.kernel + self.bias) @ self.out

    def losses(self, x: Any, y: Any) -> Any:
        """A loss for each example."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=self(x))

    def loss(self, x: Any, y: Any) -> Any:
        """Their mean."""
        return tf.reduce_mean(self.losses(x, y))

    def train(self, loss: Callable[[], Any], rate: Any = 0.1) -> Any:
        """A step downhill; gives the loss."""
        return descend(loss, self.variables, rate)

    def descend(self, gradients: Iterable[Any], rate: Any = 0.1) -> None:
        """Assign new values."""
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(rate * gradient)


def descend(loss: Callable[[], Any], variables: Any, rate: Any = 1.0) -> Any:
    """Take its gradient from a variable, or from each of a list; gives the loss."""
    trained = variables if isinstance(variables, list) else [variables]
    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(trained, tape.gradient(value, trained), strict=True):
        variable.assign_sub(rate * gradient)
    return value


def examples(count: int = sum(BATCHES), seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes for a `Net`."""
    random = np.random.default_rng(seed)
    return random.normal(size=(count, 5)), random.integers(0, 3, count)


def values(*variables: Iterable) -> list[np.ndarray]:
    """The variables' values in order."""
    return [variable.numpy() for group in variables for variable in group]


def batches(*arrays: np.ndarray, sizes: Iterable[int] = BATCHES) -> Iterator[tuple[tf.Tensor, ...]]:
    """The arrays in batches of these sizes, one behind the other, as tensors."""
    first = 0
    for size in sizes:
        yield tuple(tf.constant(array[first : first + size]) for array in arrays)
        first += size
    assert first <= len(arrays[0]), "the arrays are too short for these batches"
