"""Find out whether the kernels combine the replicas' values of a variable or a result to one device's value.

In: a variable and the state of a value written to it, or the state of a result. Out: whether the combination is right::

    aggregation sum     a sum over the examples is right       a mean or a maximum is not
    aggregation mean    a mean over the examples is right      a sum or a maximum is not
    aggregation max     a maximum over the examples is right   a sum or a mean is not
"""

from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.states.reduced import Extreme, Largest, Linear, Reduced, Smallest, Sum
from autodist_core.capture.batch_axis.states.state import SAME, Alike, State
from autodist_core.step.graph_item import Variable

_EXTREMES: dict[str, type[Extreme]] = {"max": Largest, "min": Smallest}


def read(variable: Variable, after: bool, written: State | None, operation: Any) -> State:
    """Return the state of a read value of a variable; `after` says that the step has no later write of it.

    >>> total = Variable("total", (), "float32", kind="metric", aggregation="sum")
    >>> read(total, False, None, None), read(total, True, None, None)
    (Sum(degree=1, origin=None), Alike())
    """
    if variable.kind in ("optimizer", "seed"):
        return SAME
    extreme = _EXTREMES.get(variable.combined)
    if extreme is None and variable.combined != "sum":
        return written or SAME
    if after:
        return SAME  # It is done once more, on the combined state.
    return Sum(1, operation) if extreme is None else extreme(operation)


def is_combined(variable: Variable, value: State, operation: Any, adds: bool) -> bool:
    """Whether the replicas' values of a variable combine to the value that one device writes.

    >>> mean = Variable("moving_mean", (), "float32", aggregation="mean")
    >>> is_combined(mean, Sum(0), None, False), is_combined(mean, Largest(), None, False)
    (True, False)
    """
    if variable.kind in ("optimizer", "seed") or not isinstance(value, (Alike, Reduced)):
        return True
    extreme = _EXTREMES.get(variable.combined)
    if variable.combined == "sum":
        if value == SAME:
            constant = tf.get_static_value(operation.inputs[-1])
            return constant is not None and not constant.any()
        return isinstance(value, Linear) and value.degree == 1
    if extreme is not None:
        return isinstance(value, (Alike, extreme)) and not adds
    return value == SAME or (variable.combined == "mean" and isinstance(value, Linear) and value.degree == 0)


def is_returned(state: State, dtype: tf.DType) -> bool:
    """Whether the weighted mean of the replicas' values of a float result is one device's result.

    Results of other types are always accepted: `joining` decides how these are combined.

    >>> is_returned(Sum(0, "Mean"), tf.float32), is_returned(Largest(), tf.float32)
    (True, False)
    """
    return not isinstance(state, Reduced) or not dtype.is_floating or (isinstance(state, Linear) and state.degree == 0)


