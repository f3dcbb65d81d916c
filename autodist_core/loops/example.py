"""A traced loop function, for the examples of docstrings.

In: a function of a batch with three features, and the variables that it uses. Out: the trace with the updates that are
found in it, and what was recorded of gradients:

>>> kernel = tf.Variable(tf.ones((3, 1)), name="kernel")
>>> traced, updates, recording = traced_loop(example_loop(kernel), kernel)
>>> updates.gradients[0].variable, [name for name in traced.updates if name.startswith("Assign")]
('kernel', ['AssignSubVariableOp'])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.capture import Source, Traced
from autodist_core.loops.gradients.recording import Recording, recorded
from autodist_core.loops.gradients.updates import Updates, find_updates
from autodist_core.loops.variables import Variables


def example_loop(kernel: tf.Variable) -> Callable[[Any], Any]:
    """Return a function that trains a kernel and returns the loss. The module's docstring has an example."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ kernel) ** 2)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss

    return step


def traced_loop(step: Callable[[Any], Any], *variables: tf.Variable) -> tuple[Traced, Updates, Recording]:
    """Trace a function that uses these variables. The module's docstring has an example."""
    recordings: list[Recording] = []
    results: list[Any] = []

    def function(x: Any, *_: Any) -> None:
        with recorded() as recording:
            recordings.append(recording)
            results[:] = [tf.identity(each) for each in tf.nest.flatten(step(x))]

    counts = [tf.TensorSpec((), tf.float64, name) for name in ("examples", "total")]
    batch = tf.TensorSpec((None, 3), name="x")
    concrete = tf.function(function, autograph=False).get_concrete_function(batch, *counts)
    graph, (x, examples, total) = concrete.graph, concrete.inputs[:3]
    known = Variables()
    entries = {id(variable.handle): known.entry(variable) for variable in variables}
    found = find_updates(
        graph, recordings[-1].found, [x, examples], lambda handle: entries[id(handle)].spec.name, (), results
    )
    sources = [Source(entry.spec, entry.handle) for entry in entries.values()]
    traced = Traced(
        graph, sources, [x], results, examples, total, gradients=found.gradients, updates=found.operations
    )
    return traced, found, recordings[-1]
