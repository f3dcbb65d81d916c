"""Find the variables that keep a maximum or a minimum, and let the replicas' values of them combine in the same way.

In: a traced step, whose variables have the aggregation that they declare. Out: the same step, in which these variables
have the aggregation `max` or `min`. For a metric that keeps the largest loss so far::

    AssignVariableOp(largest, Maximum(largest, loss))    aggregation: sum -> max

The whole batch's new value is the largest of the replicas' new values, and not their sum. The same holds for a minimum.
Of truth values, true is the largest: `LogicalOr` keeps a maximum, and `LogicalAnd` a minimum. A truth value of a metric
that is written in any other way, as in a conditional, says whether anything was true: it becomes a maximum, too.
"""

from dataclasses import replace
from typing import Any

from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import behind
from autodist_core.step.grouping import by_key

_EXTREMES = {
    "Maximum": "max", "Max": "max", "LogicalOr": "max", "Any": "max",
    "Minimum": "min", "Min": "min", "LogicalAnd": "min", "All": "min",
}  # fmt: skip
_PUTTING_TOGETHER = ("ConcatV2", "ExpandDims", "Pack", "Reshape")
_DECLARED = {"metric": ("sum", "none"), "model": ("none",)}
"""The kinds of variables that are looked at, and for each kind the declared aggregations that may change."""


def combined_as_written(traced: Traced) -> Traced:
    """Return the step with the aggregation `max` or `min` for each variable that keeps one.

    A variable keeps a maximum if all writes to it outside the updates write the maximum of its own value and others. So
    does any other truth value of a metric: such values have no sum.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.traced import Source
    >>> from autodist_core.step.graph_item import Variable
    >>> largest = tf.Variable(0.0)
    >>> keep = tf.function(lambda x: largest.assign(tf.maximum(largest, x)), autograph=False)
    >>> step = keep.get_concrete_function(tf.TensorSpec(()))
    >>> source = Source(Variable("largest", (), "float32", False, kind="metric", aggregation="sum"), largest.handle)
    >>> traced = combined_as_written(Traced(step.graph, [source], step.inputs, step.outputs, None, None))
    >>> traced.sources[0].variable.aggregation
    'max'
    """
    kept = by_key(
        (variable.name, _kept_by(operation)) for operation in traced.graph.get_operations()
        if operation.name not in traced.updates and operation.type != "ReadVariableOp"
        for tensor in operation.inputs if (variable := traced.captured.get(tensor.op.name)) is not None
    )
    sources = []
    for source in traced.sources:
        variable = source.variable
        found = {*kept.get(variable.name, [""])}
        way = found.pop() if len(found) == 1 else ""
        if not way and variable.kind == "metric" and variable.dtype == "bool":
            way = "max"
        if way and variable.aggregation in _DECLARED.get(variable.kind, ()):
            source = replace(source, variable=replace(variable, aggregation=way))
        sources.append(source)
    return replace(traced, sources=sources)


def _kept_by(write: Any) -> str:
    """Return `max` or `min` if a write keeps that of a variable's old value and a new one, else an empty string."""
    if write.type != "AssignVariableOp":
        return ""
    value = behind(write.inputs[1]).op
    extreme = _EXTREMES.get(value.type, "")
    return extreme if extreme and _has(value, extreme, write.inputs[0]) else ""


def _has(operation: Any, extreme: str, handle: Any) -> bool:
    """Whether the variable's own value is among the values whose maximum or minimum an operation takes."""
    for tensor in operation.inputs:
        source = behind(tensor).op
        if source.type == "ReadVariableOp" and source.inputs[0] is handle:
            return True
        goes_on = source.type in _PUTTING_TOGETHER or _EXTREMES.get(source.type) == extreme
        if goes_on and _has(source, extreme, handle):
            return True
    return False
