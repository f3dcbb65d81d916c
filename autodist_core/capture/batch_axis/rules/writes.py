"""What is written to a variable, and how this depends on the examples.

In: an operation that writes a variable, and the states of its inputs. Out: the state of the written value. For a metric
with a count for each class::

    AssignAddVariableOp(count, sum of x)              a sum over the examples
    ResourceScatterAdd(count, classes, ones)          a sum over the examples
    ResourceScatterMax(peak, classes, x)              the largest value over the examples
    AssignAddVariableOp(count, 1), once per example   a sum over the examples
"""

from collections.abc import Sequence
from typing import Any

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, REDUCED, Kind, State

ADDING = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatterAdd", "ResourceScatterSub",
          "ResourceScatterNdAdd", "ResourceScatterNdSub")  # fmt: skip
_EXTREMES = {"ResourceScatterMax": Kind.LARGEST, "ResourceScatterNdMax": Kind.LARGEST,
             "ResourceScatterMin": Kind.SMALLEST, "ResourceScatterNdMin": Kind.SMALLEST}  # fmt: skip
_REPLACING = ("AssignVariableOp", "ResourceScatterUpdate", "ResourceScatterNdUpdate", "ResourceStridedSliceAssign")


def is_known(operation: Any) -> bool:
    """Whether it is known what an operation does with the variable of its first input.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     total = tf.Variable(0.0)
    ...     is_known(total.assign_add(1.0).op), is_known(tf.constant(1.0).op)
    (True, False)
    """
    return operation.type in ADDING or operation.type in _EXTREMES or operation.type in _REPLACING


def value_written(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of what an operation writes, which is of a known kind. The module's docstring has examples.

    >>> from autodist_core.capture.batch_axis.states.state import SAME, rows
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     counts = tf.Variable([0.0, 0.0])
    ...     write = tf.raw_ops.ResourceScatterMax(resource=counts.handle, indices=[0, 1], updates=[1.0, 2.0])
    >>> from types import SimpleNamespace
    >>> value_written(SimpleNamespace(repeats=False), write, [SAME, rows(0), rows(0)]).kind
    'max'
    """
    index, value = states[1:-1], states[-1]
    if any(state.kind == Kind.UNKNOWN for state in states[1:]):
        return NO_CLAIM
    if index:
        value = _by_index(flow, operation, index, value)
    constant = value.kind == Kind.ALIKE and value_of(operation.inputs[-1]) is not None
    if flow.repeats and not (constant and operation.type not in ADDING):
        adds = operation.type in ADDING and flow.rounds is not None and value.kind in (Kind.ALIKE, Kind.ONE)
        return State(Kind.SUM, degree=1, origin=operation) if adds else State(Kind.MIXED, origin=operation)
    return value


def _by_index(flow: Any, operation: Any, index: Sequence[State], value: State) -> State:
    """Return the state of what is written to the entries at an index."""
    by_example = [state for state in (*index, value) if state.kind == Kind.ROWS]
    if not by_example:
        if all(state.kind in (Kind.ALIKE, Kind.ONE) for state in index):
            return value
        return State(Kind.MIXED, origin=operation)
    if operation.type in _EXTREMES and not any(state.stride for state in by_example):
        return State(_EXTREMES[operation.type], origin=operation)
    tied = any(state.stride or state.degree for state in by_example) or value.kind in REDUCED
    if operation.type in ADDING and not tied and index[0].kind == Kind.ROWS:
        return State(Kind.SUM, degree=1, origin=operation) if aligned(flow, operation, by_example) else NO_CLAIM
    return State(Kind.MIXED, origin=operation)


def partly(operation: Any, before: State, value: State, combined: State) -> State:
    """Return the state of a variable that was written in part.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     write = tf.Variable([0.0, 0.0]).assign([1.0, 2.0]).op
    >>> partly(write, State(Kind.MIXED), State(Kind.SUM), NO_CLAIM).kind
    'sum'
    """
    if operation.type == "AssignVariableOp":
        return value
    lost = combined.kind == Kind.UNKNOWN and Kind.UNKNOWN not in (before.kind, value.kind)
    return State(Kind.MIXED, origin=operation) if lost else combined

