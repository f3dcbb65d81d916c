"""How a variable's own update combines values, where that can be seen: a maximum stays one over the replicas.

A metric that keeps the largest value so far writes `maximum(variable, something)`. The whole batch's new value is then
the largest of the replicas' new values. The same holds for minima.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autodist_core.capture.traced import Traced

_EXTREMES = {"Maximum": "max", "Minimum": "min"}
_DECLARED = {"metric": ("sum", "none"), "model": ("none",)}
"""Of which kinds of variables, and of which of the aggregations that they declare, the update is looked at."""


def combined_as_written(traced: Traced) -> Traced:
    """The same step, in which variables that keep a maximum or a minimum say so.

    In: variables as they declare an aggregation. Out: `aggregation="max"` or `"min"` where all writes outside the
    step's updates are such ones.
    """
    handles = {id(value): placeholder for value, placeholder in traced.graph.captures}
    inside = {at for first, last in traced.updates.values() for at in range(first, last)}
    writes: dict[int, list[Any]] = {}
    for at, operation in enumerate(traced.graph.get_operations()):
        if at not in inside and operation.type != "ReadVariableOp":
            for tensor in operation.inputs:
                if tensor.op.type == "Placeholder":
                    writes.setdefault(id(tensor), []).append(operation)
    sources = []
    for source in traced.sources:
        variable, placeholder = source.variable, handles.get(id(source.handle))
        kept = {_kept_by(write, placeholder) for write in writes.get(id(placeholder), ())}
        if variable.aggregation in _DECLARED.get(variable.kind, ()) and len(kept) == 1 and "" not in kept:
            source = replace(source, variable=replace(variable, aggregation=kept.pop()))
        sources.append(source)
    return replace(traced, sources=sources)


def _kept_by(write: Any, handle: Any) -> str:
    """What a write keeps of a variable's old and new values: `max`, `min`, or nothing that is known."""
    if write.type != "AssignVariableOp":
        return ""
    value = _behind(write.inputs[1].op)
    return _EXTREMES[value.type] if value.type in _EXTREMES and _has(value, value.type, handle) else ""


def _has(operation: Any, kind: str, handle: Any) -> bool:
    """Whether one of the values of which an extreme is taken is the variable's own."""
    for tensor in operation.inputs:
        source = _behind(tensor.op)
        if source.type == "ReadVariableOp" and source.inputs[0] is handle:
            return True
        if source.type == kind and _has(source, kind, handle):
            return True
    return False


def _behind(operation: Any) -> Any:
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    return operation
