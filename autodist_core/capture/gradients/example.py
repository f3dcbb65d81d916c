"""A function whose gradients are recorded, for the examples of docstrings.

In: a function of a batch with three features. Out: its trace, its results in the trace, and what was recorded of
gradients:

>>> kernel = tf.Variable(tf.ones((3, 1)), name="kernel")
>>> concrete, results, recording = recorded_trace(example_loop(kernel))
>>> [result.op.name for result in results], len(recording.found)
(['Identity'], 1)
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.capture.gradients.recording import Recording, recorded


def example_loop(kernel: tf.Variable) -> Callable[[Any], Any]:
    """Return a function that trains a kernel and returns the loss. The module's docstring has an example."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ kernel) ** 2)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss

    return step


def recorded_trace(step: Callable[[Any], Any]) -> tuple[Any, list[Any], Recording]:
    """Trace a function, and record its gradients. The module's docstring has an example."""
    recordings: list[Recording] = []
    results: list[Any] = []

    def function(x: Any, *_: Any) -> None:
        with recorded() as recording:
            recordings.append(recording)
            results[:] = [tf.identity(each) for each in tf.nest.flatten(step(x))]

    counts = [tf.TensorSpec((), tf.float64, name) for name in ("examples", "total")]
    batch = tf.TensorSpec((None, 3), name="x")
    concrete = tf.function(function, autograph=False).get_concrete_function(batch, *counts)
    return concrete, results, recordings[-1]
