"""Refuse writes of a function's own variables of which it is not known how the replicas' values become one.

In: what a function writes of the batch outside its updates, such as counters. Out: nothing, or a `CaptureError`::

    total.assign_add(tf.reduce_sum(losses))                 passes: a float is combined by shares
    right.assign_add(tf.reduce_sum(tf.cast(hit, tf.int32)))  is refused, unless `right` declares that it is added up
    counts.scatter_add(rows)                                 is refused
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autodist_core.capture.batch_axis import SUM, State
from autodist_core.errors import CaptureError
from autodist_core.loops.side_state import Addition
from autodist_core.step.graph_item import Variable

_IN_PLACE = ("ResourceScatter", "ResourceStridedSliceAssign")
_DECLARE = "Declare how they do: tf.Variable(..., aggregation=tf.VariableAggregation.SUM)"


def require_combined(
    writes: Iterable[tuple[Any, str]], variables: Mapping[str, Variable], added: Sequence[Addition],
    states: Sequence[State],
) -> None:
    """Raise a CaptureError for the first such write. `writes` has the operations that write, with their variables."""
    for operation, name in writes:
        if operation.type.startswith(_IN_PLACE):
            raise CaptureError(
                f"variable {name!r} is written in place by {operation.name!r} ({operation.type}) from the batch, of "
                "which each replica has a part. Add a whole tensor to it instead, such as "
                "assign_add(tf.math.unsorted_segment_sum(values, rows, size))."
            )
    for addition, state in zip(added, states, strict=True):
        variable = addition.variable
        counts = state.kind == SUM and state.degree > 0 and not addition.added.dtype.is_floating
        if counts and variable.aggregation != "sum" and variable.name in variables:
            raise CaptureError(
                f"variable {variable.name!r} counts what is in the batch, and it is not known that the replicas' "
                f"counts are added up. {_DECLARE}."
            )


def require_declared(writes: Iterable[tuple[Any, str]], variables: Mapping[str, Variable]) -> None:
    """Raise a CaptureError for a write inside `run()` of a variable that says nothing of how replicas combine it."""
    for operation, name in writes:
        variable = variables[name]
        if variable.aggregation == "none" and variable.kind != "seed":
            raise CaptureError(
                f"variable {name!r} is written by {operation.name!r} ({operation.type}) on each replica, and it is not "
                f"known how the replicas' values become one. {_DECLARE}, or MEAN, or ONLY_FIRST_REPLICA."
            )
