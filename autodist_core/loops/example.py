"""A traced loop function, for the examples of docstrings.

In: a function of a batch with three features, and the variables that it uses. Out: the trace with the updates that are
found in it, and what was recorded of gradients:

>>> from autodist_core.capture.gradients.example import example_loop
>>> kernel = tf.Variable(tf.ones((3, 1)), name="kernel")
>>> traced, updates, recording = traced_loop(example_loop(kernel), kernel)
>>> updates.gradients[0].variable, [name for name in traced.updates if name.startswith("Assign")]
('kernel', ['AssignSubVariableOp'])
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.capture import Source, Traced
from autodist_core.capture.gradients import Recording
from autodist_core.capture.gradients.example import recorded_trace
from autodist_core.loops.gradients.updates import Updates, find_updates
from autodist_core.loops.variables import Variables


def traced_loop(step: Callable[[Any], Any], *variables: tf.Variable) -> tuple[Traced, Updates, Recording]:
    """Trace a function that uses these variables. The module's docstring has an example."""
    concrete, results, recording = recorded_trace(step)
    graph, (x, examples, total) = concrete.graph, concrete.inputs[:3]
    known = Variables()
    entries = {id(variable.handle): known.entry(variable) for variable in variables}
    found = find_updates(
        graph, recording.found, [x, examples], lambda handle: entries[id(handle)].spec.name, (), results
    )
    sources = [Source(entry.spec, entry.handle) for entry in entries.values()]
    traced = Traced(
        graph, sources, [x], results, examples, total, gradients=found.gradients, updates=found.operations
    )
    return traced, found, recording
