"""Name the variables of which `run` counts an update by hand otherwise than tf.distribute does.

In: the traced function, and the differentiations of its updates. Out: a note for each
variable. Under tf.distribute, what the replicas assign to a variable becomes one value by the variable's aggregation.
Here gradients are added up, which is what an optimizer does::

    w = tf.Variable(...)                       w.assign_sub(rate * gradient)     the sum; tf.distribute refuses it
    w = tf.Variable(..., aggregation=MEAN)     w.assign_sub(rate * gradient)     here the sum, there the mean: noted
    w = tf.Variable(..., aggregation=MEAN)     optimizer.apply([gradient], [w])  the sum, in both
    n = tf.Variable(..., aggregation=SUM)      n.assign(n + count)               here n counts once, there once for each
                                                                                 replica: noted
    n = tf.Variable(..., aggregation=SUM)      n.assign_add(count)               the sum of the counts, in both

A variable of Keras assigns `n + count` in its `assign_add`. So do Keras's metrics, and nothing is noted of them: the
sum of the counts is what they mean.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from autodist_core.capture import reached_from, sources
from autodist_core.capture.gradients.recording import Differentiation
from autodist_core.capture.traced import Traced
from autodist_core.loops.nested_markers import is_reduced
from autodist_core.plan import INEXACT


def averaged_by_hand(traced: Traced, found: Sequence[Differentiation]) -> Iterator[str]:
    """The notes on variables with the aggregation MEAN that a function updates by hand, one for each assignment.

    >>> import tensorflow as tf
    >>> from dataclasses import replace
    >>> from autodist_core.capture.gradients.example import example_loop, recorded_trace
    >>> kernel = tf.Variable(tf.ones((3, 1)), aggregation=tf.VariableAggregation.MEAN)
    >>> traced, recording = recorded_trace(example_loop(kernel), kernel=kernel)
    >>> traced = replace(traced, updates={"AssignSubVariableOp": 0})
    >>> [note.partition(",")[0] for note in averaged_by_hand(traced, recording.found)]
    ["not exact: variable 'kernel' has the aggregation MEAN"]
    """
    markers = {marker.op.name for call in found for marker in call.markers}
    for operation, variable in _assigned(traced, "mean"):
        if operation.name not in traced.updates:
            continue
        needed = reached_from([operation], sources, stop=is_reduced)
        if markers.intersection(needed):
            yield (
                f"{INEXACT}: variable {variable.name!r} has the aggregation MEAN, and what is assigned to it is made "
                "of gradients without an optimizer: here the replicas' gradients are added up, and tf.distribute takes "
                "the mean of what the replicas assign. Divide the gradients by num_replicas_in_sync here, or give them "
                "to an optimizer: it adds them up in both"
            )


def summed_with_itself(traced: Traced) -> Iterator[str]:
    """The notes on variables with the aggregation SUM to which a function assigns something made of their own value.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> seen = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
    >>> traced, _ = recorded_trace(lambda x: seen.assign(seen + tf.reduce_sum(x)), seen=seen)
    >>> [note.partition(",")[0] for note in summed_with_itself(traced)]
    ["not exact: variable 'seen' has the aggregation SUM"]
    """
    for operation, variable in _assigned(traced, "sum"):
        if operation.name in traced.updates or operation.type != "AssignVariableOp" or _is_addition(operation):
            continue
        needed = reached_from([operation.inputs[1].op], sources)
        handle = operation.inputs[0]
        if any(each.type == "ReadVariableOp" and each.inputs[0] is handle for each in needed.values()):
            yield (
                f"{INEXACT}: variable {variable.name!r} has the aggregation SUM, and what is assigned to it is made of "
                "its own value: here that value counts once, and tf.distribute adds up what the replicas assign, so it "
                "counts once for each replica. Write assign_add: it counts the same in both"
            )


def _is_addition(operation: Any) -> bool:
    """Whether a method of one of Keras's variables has made an assignment that adds, or one of a metric."""
    return any(frame.name in ("assign_add", "assign_sub", "update_state") for frame in operation.traceback or ())


def _assigned(traced: Traced, aggregation: str) -> Iterator[tuple[Any, Any]]:
    """The assignments to variables with an aggregation, each with its variable."""
    for operation in traced.graph.get_operations():
        if operation.type.startswith("Assign") and operation.inputs:
            variable = traced.captured.get(operation.inputs[0].op.name)
            if variable is not None and variable.aggregation == aggregation:
                yield operation, variable
