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
from autodist_core.capture.batch_axis.states.reduced import EXTREMES, Mixed, Reduced, Sum
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, One, Rows, State

ADDING = ("AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatterAdd", "ResourceScatterSub",
          "ResourceScatterNdAdd", "ResourceScatterNdSub")  # fmt: skip
_EXTREMES = ("ResourceScatterMax", "ResourceScatterMin", "ResourceScatterNdMax", "ResourceScatterNdMin")
_REPLACING = ("AssignVariableOp", "ResourceScatterUpdate", "ResourceScatterNdUpdate", "ResourceStridedSliceAssign")


def is_known(operation: Any) -> bool:
    """Whether it is known what an operation does with the variable of its first input.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     total = tf.Variable(0.0)
    ...     is_known(total.assign_add(1.0).op), is_known(tf.constant(1.0).op)
    (True, False)
    """
    return operation.type in (*ADDING, *_EXTREMES, *_REPLACING)


def value_written(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of what an operation writes, which is of a known kind. The module's docstring has examples.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     counts = tf.Variable([0.0, 0.0])
    ...     write = tf.raw_ops.ResourceScatterMax(resource=counts.handle, indices=[0, 1], updates=[1.0, 2.0])
    >>> from types import SimpleNamespace
    >>> value_written(SimpleNamespace(repeats=False), write, [SAME, Rows(), Rows()]).origin.type
    'ResourceScatterMax'
    """
    index, value = states[1:-1], states[-1]
    if NO_CLAIM in states[1:]:
        return NO_CLAIM
    if index:
        value = _by_index(flow, operation, index, value)
    constant = value == SAME and value_of(operation.inputs[-1]) is not None
    if flow.repeats and not (constant and operation.type not in ADDING):
        adds = operation.type in ADDING and flow.rounds is not None and isinstance(value, (Alike, One))
        return Sum(1, operation) if adds else Mixed(operation)
    return value


def _by_index(flow: Any, operation: Any, index: Sequence[State], value: State) -> State:
    """Return the state of what is written to the entries at an index."""
    by_example = [state for state in (*index, value) if isinstance(state, Rows)]
    if not by_example:
        return value if all(isinstance(state, (Alike, One)) for state in index) else Mixed(operation)
    if operation.type in _EXTREMES and not any(state.stride for state in by_example):
        return EXTREMES[operation.type[-3:]](operation)
    tied = any(state.stride or state.degree for state in by_example) or isinstance(value, Reduced)
    if operation.type in ADDING and not tied and isinstance(index[0], Rows):
        return Sum(1, operation) if aligned(flow, operation, by_example) else NO_CLAIM
    return Mixed(operation)


def partly(operation: Any, before: State, value: State, combined: State) -> State:
    """Return the state of a variable that was written in part.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     write = tf.Variable([0.0, 0.0]).assign([1.0, 2.0]).op
    >>> partly(write, Mixed(), Sum(0), NO_CLAIM)
    Sum(degree=0, origin=None)
    """
    if operation.type == "AssignVariableOp":
        return value
    lost = combined == NO_CLAIM and NO_CLAIM not in (before, value)
    return Mixed(operation) if lost else combined

