"""Name the variables of which `run` counts an update by hand otherwise than tf.distribute does.

In: the traced function, and the differentiations of its updates. Out: a note for each
variable. Under tf.distribute, what the replicas assign to a variable becomes one value by the variable's aggregation.
Here gradients are added up, which is what an optimizer does::

    w = tf.Variable(...)                       w.assign_sub(rate * gradient)     the sum; tf.distribute refuses it
    w = tf.Variable(..., aggregation=MEAN)     w.assign_sub(rate * gradient)     here the sum, there the mean: noted
    w = tf.Variable(..., aggregation=MEAN)     optimizer.apply([gradient], [w])  the sum, in both
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autodist_core.capture import reached_from, sources
from autodist_core.capture.traced import Traced
from autodist_core.loops.gradients.recording import Differentiation
from autodist_core.loops.nested_markers import is_reduced
from autodist_core.plan import INEXACT


def averaged_by_hand(traced: Traced, found: Sequence[Differentiation]) -> Iterator[str]:
    """The notes on variables with the aggregation MEAN that a function updates by hand.

    >>> import tensorflow as tf
    >>> from autodist_core.loops.example import example_loop, traced_loop
    >>> kernel = tf.Variable(tf.ones((3, 1)), name="kernel", aggregation=tf.VariableAggregation.MEAN)
    >>> traced, updates, recording = traced_loop(example_loop(kernel), kernel)
    >>> [note.partition(",")[0] for note in averaged_by_hand(traced, recording.found)]
    ["not exact: variable 'kernel' has the aggregation MEAN"]
    """
    markers = {marker.op.name for call in found for gradient in call.gradients for marker in gradient.markers}
    handles = {id(placeholder): value for value, placeholder in traced.graph.captures}
    by_handle = {id(source.handle): source.variable for source in traced.sources}
    said: set[str] = set()
    for operation in traced.graph.get_operations():
        if operation.name not in traced.updates or not operation.type.startswith("Assign"):
            continue
        variable = by_handle.get(id(handles.get(id(operation.inputs[0]))))
        if variable is None or variable.aggregation != "mean" or variable.name in said:
            continue
        needed = reached_from([operation], sources, stop=is_reduced)
        if markers.intersection(needed):
            said.add(variable.name)
            yield (
                f"{INEXACT}: variable {variable.name!r} has the aggregation MEAN, and what is assigned to it is made "
                "of gradients without an optimizer: here the replicas' gradients are added up, and tf.distribute takes "
                "the mean of what the replicas assign. Divide the gradients by num_replicas_in_sync here, or give them "
                "to an optimizer: it adds them up in both"
            )
