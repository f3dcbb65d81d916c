"""A function whose gradients are recorded, for the examples of docstrings.

In: a function of a batch with three features, and the variables that it uses. Out: its trace, and what was recorded of
gradients:

>>> kernel = tf.Variable(tf.ones((3, 1)))
>>> traced, recording = recorded_trace(example_loop(kernel), kernel=kernel)
>>> [result.op.name for result in traced.outputs], traced.sources[0].variable.name, len(recording.found)
(['Identity'], 'kernel', 1)
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.gradients.recording import Recording, recorded
from autodist_core.capture.traced import Source, Traced, variable_of


def example_loop(kernel: tf.Variable) -> Callable[[Any], Any]:
    """Return a function that trains a kernel and returns the loss. The module's docstring has an example."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ kernel) ** 2)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss

    return step


def recorded_trace(
    step: Callable[[Any], Any], shape: Sequence[int | None] = (None, 3), dtype: Any = tf.float32,
    **variables: tf.Variable,
) -> tuple[Traced, Recording]:  # fmt: skip
    """Trace a function of a batch, and record its gradients. The module's docstring has an example."""
    recordings: list[Recording] = []
    results: list[Any] = []

    def function(x: Any, *_: Any) -> None:
        with recorded() as recording:
            recordings.append(recording)
            results[:] = [tf.identity(each) for each in tf.nest.flatten(step(x))]

    counts = [tf.TensorSpec((), tf.float64, name) for name in ("examples", "total")]
    batch = tf.TensorSpec(shape, dtype, "x")
    concrete = tf.function(function, autograph=False).get_concrete_function(batch, *counts)
    sources = [
        Source(variable_of(name, each, "model", each.aggregation.name.lower()), each.handle)
        for name, each in variables.items()
    ]
    x, examples, total = concrete.inputs[:3]
    return Traced(concrete.graph, sources, [x], results, examples, total), recordings[-1]
