"""What the kernels make of the replicas' values of a variable or a result, and whether that is one device's value.

Sums over the replicas are right for sums over the examples, and weighted means for means over them; a maximum over the
replicas is right for a maximum.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.state import (
    ALIKE,
    LARGEST,
    REDUCED,
    SAME,
    SMALLEST,
    SUM,
    State,
)
from autodist_core.step.graph_item import Variable

_OF_AGGREGATION = {"sum": SUM, "max": LARGEST, "min": SMALLEST}


def read(variable: Variable, after: bool, written: State | None, operation: Any) -> State:
    """What an operation reads of a variable; `after` says that the step does not write it any more."""
    if variable.kind in ("optimizer", "seed"):
        return SAME
    kind = _OF_AGGREGATION.get(variable.aggregation)
    if kind is None:
        return written or SAME
    # What is read of a metric after its update is read once more from the combined state.
    return SAME if after else State(kind, degree=int(kind == SUM), origin=operation)


def is_combined(variable: Variable, value: State, operation: Any, adds: bool) -> bool:
    """Whether the replicas' values of a variable are combined to what one device writes."""
    if variable.kind in ("optimizer", "seed") or value.kind not in (ALIKE, *REDUCED):
        return True
    kind = _OF_AGGREGATION.get(variable.aggregation)
    if kind == SUM:
        if value.kind == ALIKE:
            constant = tf.get_static_value(operation.inputs[1])
            return constant is not None and not constant.any()
        return value.kind == SUM and value.degree == 1
    if value.kind == ALIKE:
        return not (adds and kind is not None)
    if kind is not None:
        return value.kind == kind and not adds
    floating = tf.as_dtype(variable.dtype).is_floating
    if variable.aggregation == "mean" or (variable.aggregation == "none" and floating):
        return value.kind == SUM and value.degree == 0
    return False


def is_returned(state: State, dtype: tf.DType) -> bool:
    """Whether the replicas' mean of a float result is what one device returns; of others the kernels know more."""
    return state.kind not in REDUCED or not dtype.is_floating or (state.kind == SUM and state.degree == 0)


