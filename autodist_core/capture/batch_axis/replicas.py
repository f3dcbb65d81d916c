"""Find out whether the kernels combine the replicas' values of a variable or a result to one device's value.

In: a variable and the state of a value written to it, or the state of a result. Out: whether the combination is right::

    aggregation sum     a sum over the examples is right       a mean or a maximum is not
    aggregation mean    a mean over the examples is right      a sum or a maximum is not
    aggregation max     a maximum over the examples is right   a sum or a mean is not
"""

from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.states.state import REDUCED, SAME, Kind, State
from autodist_core.step.graph_item import Variable

_COMBINED = {"sum": Kind.SUM, "max": Kind.LARGEST, "min": Kind.SMALLEST}


def read(variable: Variable, after: bool, written: State | None, operation: Any) -> State:
    """Return the state of a read value of a variable; `after` says that the step has no later write of it.

    >>> total = Variable("total", (), "float32", kind="metric", aggregation="sum")
    >>> read(total, False, None, None).kind, read(total, True, None, None).kind
    ('sum', 'alike')
    """
    if variable.kind in ("optimizer", "seed"):
        return SAME
    kind = _COMBINED.get(variable.combined)
    if kind is None:
        return written or SAME
    # A read of a metric after its update is done once more, on the combined state.
    return SAME if after else State(kind, degree=int(kind == Kind.SUM), origin=operation)


def is_combined(variable: Variable, value: State, operation: Any, adds: bool) -> bool:
    """Whether the replicas' values of a variable combine to the value that one device writes.

    >>> mean = Variable("moving_mean", (), "float32", aggregation="mean")
    >>> is_combined(mean, State(Kind.SUM, degree=0), None, False), is_combined(mean, State(Kind.LARGEST), None, False)
    (True, False)
    """
    if variable.kind in ("optimizer", "seed") or value.kind not in (Kind.ALIKE, *REDUCED):
        return True
    kind = _COMBINED.get(variable.combined)
    if kind == Kind.SUM:
        if value.kind == Kind.ALIKE:
            constant = tf.get_static_value(operation.inputs[-1])
            return constant is not None and not constant.any()
        return value.kind == Kind.SUM and value.degree == 1
    if value.kind == Kind.ALIKE:
        return not (adds and kind is not None)
    if kind is not None:
        return value.kind == kind and not adds
    return variable.combined == "mean" and value.kind == Kind.SUM and value.degree == 0


def is_returned(state: State, dtype: tf.DType) -> bool:
    """Whether the weighted mean of the replicas' values of a float result is one device's result.

    Results of other types are always accepted: `joining` decides how these are combined.

    >>> is_returned(State(Kind.SUM, degree=0, origin="Mean"), tf.float32), is_returned(State(Kind.LARGEST), tf.float32)
    (True, False)
    """
    return state.kind not in REDUCED or not dtype.is_floating or (state.kind == Kind.SUM and state.degree == 0)


