"""Refuse writes of a function's own variables if it is not known how the replicas' values become one.

In: what a function writes of the batch outside its updates, such as counters. Out: nothing, or a `CaptureError`::

    total.assign_add(tf.reduce_sum(losses))                 passes: a float is combined by shares
    right.assign_add(tf.reduce_sum(tf.cast(hit, tf.int32)))  is refused, unless `right` declares that it is added up
    counts.scatter_add(rows)                                 is refused
    kept.assign(x)                                           is refused: each replica has other rows of it
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis import Linear, Rows, State, UncombinedWrite
from autodist_core.errors import CaptureError
from autodist_core.loops.combining.side_state import Addition
from autodist_core.step.graph_item import Variable

_IN_PLACE = ("ResourceScatter", "ResourceStridedSliceAssign")
_WHOLE = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_DECLARE = "Declare how they do: tf.Variable(..., aggregation=tf.VariableAggregation.SUM)"


def require_combined(
    writes: Iterable[tuple[Any, str]], added: Iterable[tuple[Addition, State]], state_of: Callable[[Any], State]
) -> None:
    """Raise a CaptureError for the first such write. `writes` has the operations that write, with their variables.

    >>> with tf.Graph().as_default():
    ...     write = tf.Variable(tf.zeros((4, 3))).assign(tf.ones((4, 3))).op
    >>> require_combined([(write, "kept")], [], lambda value: Rows())
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: variable 'kept' is written by ... with a value for each example of the batch ...
    >>> with tf.Graph().as_default():
    ...     rows = tf.Variable(tf.zeros((4, 3)))
    ...     write = tf.raw_ops.ResourceScatterAdd(resource=rows.handle, indices=[0], updates=tf.ones((1, 3)))
    >>> require_combined([(write, "rows")], [], lambda value: Rows())
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: variable 'rows' is written in place by 'ResourceScatterAdd' ...
    """
    for operation, name in writes:
        value = operation.inputs[-1]
        if operation.type in _WHOLE and isinstance(state := state_of(value), Rows):
            raise CaptureError(
                f"variable {name!r} is written by {operation.name!r} ({operation.type}) with a value for each example "
                f"of the batch ({value.dtype.name} of shape {value.shape}, the examples along axis {state.axis}), of "
                "which each replica has a part. Write a sum or a mean over the examples, or return the value, which "
                "is then the whole batch's, and assign it after the call."
            )
        if operation.type.startswith(_IN_PLACE):
            raise CaptureError(
                f"variable {name!r} is written in place by {operation.name!r} ({operation.type}) from the batch, of "
                "which each replica has a part. Add a whole tensor to it instead, such as "
                "assign_add(tf.math.unsorted_segment_sum(values, rows, size))."
            )
    for addition, state in added:
        variable = addition.variable
        counts = isinstance(state, Linear) and state.degree > 0 and not addition.added.dtype.is_floating
        if counts and variable.aggregation != "sum":
            raise CaptureError(
                f"variable {variable.name!r} counts what is in the batch, and it is not known that the replicas' "
                f"counts are added up. {_DECLARE}."
            )


def require_averaged(
    writes: Iterable[tuple[Any, str]], variables: Mapping[str, Variable], added: Iterable[tuple[Addition, State]],
    uncombined: Iterable[UncombinedWrite],
) -> None:
    """Raise a CaptureError for a write inside `run()` of a variable whose mean over the replicas would say nothing.

    A float that declares nothing becomes the mean of the replicas' values, as a moving average does. That is wrong for
    what is a sum over the examples. `added` are the additions with their states, and `uncombined` the writes that a
    mean does not combine.

    >>> with tf.Graph().as_default():
    ...     write = tf.Variable(0).assign_add(1).op
    >>> require_averaged([(write, "seen")], {"seen": Variable("seen", (), "int32")}, [], [])
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: variable 'seen' is written by ..., and it is not known how the replicas' values
        become one. Declare how they do: ...
    """
    counts = {addition.write for addition, state in added if _is_sum(state)}
    counts |= {each.operation for each in uncombined if _is_sum(each.state)}
    for operation, name in writes:
        variable = variables[name]
        if variable.aggregation != "none" or variable.kind == "seed":
            continue
        is_float = tf.as_dtype(variable.dtype).is_floating or tf.as_dtype(variable.dtype).is_complex
        if not is_float or operation.type.startswith(_IN_PLACE) or operation in counts:
            raise CaptureError(
                f"variable {name!r} is written by {operation.name!r} ({operation.type}) on each replica, and it is not "
                f"known how the replicas' values become one. {_DECLARE}, or MEAN, or ONLY_FIRST_REPLICA."
            )


def _is_sum(state: State) -> bool:
    return isinstance(state, Linear) and state.degree != 0
