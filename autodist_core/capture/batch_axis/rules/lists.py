"""Rules for the lists of tensors that loops read and write.

In: the states of a list, an index and an element. Out: the states of the results. For a list of the n examples::

    TensorListGetItem(list, counter of the examples)    one: the element belongs to one example
    TensorListGetItem(list, 0)                          a coupling: it takes examples by their place in the batch
    TensorListLength(list)                              a size

The first axis of a list's state is along the list; the others are those of its elements.
"""

from collections.abc import Sequence
from typing import Any

from autodist_core.capture.batch_axis.rules import arithmetic
from autodist_core.capture.batch_axis.rules.inner import combined
from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES, PAIRS, POSITION
from autodist_core.capture.batch_axis.states.places import OTHER
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, SIZE, Kind, State, rows


def made(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of an empty list of a given length.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, tf.shape(x)[0]).size())
    'the number of examples'
    """
    length = states[1]
    return rows(0, outer=length.outer, free=True) if length.is_size and length.degree == 1 else SAME


def put(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a list into which an element is put at an index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 2).write(0, x).write(1, 2 * x).stack())
    'rows along axis 1'
    """
    here, index, item = states[0], states[1], states[-1]
    if Kind.UNKNOWN in (here.kind, index.kind, item.kind):
        return NO_CLAIM
    along = here.kind == Kind.ROWS and 0 in here.axes
    if index.stride == 1 and flow.rounds is not None and (not along or flow.rounds.own(index, here)):
        if item.kind == Kind.ROWS:
            return flow.couple(operation, PAIRS)
        flow.couple_values([item], operation)
        return combined(here, flow.rounds.listed(item if item.kind == Kind.ONE else SAME))
    if along or index.stride or index.kind not in (Kind.ALIKE, Kind.ONE):
        return flow.couple(operation, POSITION)
    if item.kind == Kind.ALIKE and index.kind == Kind.ONE:
        return combined(here, State(Kind.ONE))
    if item.kind == Kind.ROWS:
        item = item.at(*(axis + 1 for axis in item.axes))
    return combined(here, item)


def pushed(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a list to whose end an element is put.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> def stacked(x):
    ...     empty = tf.raw_ops.EmptyTensorList(element_shape=[-1, 3], max_num_elements=2, element_dtype=tf.float32)
    ...     full = tf.raw_ops.TensorListPushBack(input_handle=empty, tensor=x)
    ...     return tf.raw_ops.TensorListStack(input_handle=full, element_shape=[-1, 3], element_dtype=tf.float32)
    >>> shown(stacked)
    'rows along axis 1'
    """
    here, item = states
    if item.kind == Kind.ONE or (here.kind == Kind.ROWS and 0 in here.axes):
        if not flow.is_of_tape(operation):
            flow.couple(operation, ALONG_EXAMPLES)
        return NO_CLAIM
    return combined(here, item.at(*(axis + 1 for axis in item.axes)) if item.kind == Kind.ROWS else item)


def got(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of one element of a list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 1).write(0, x).read(0))
    'rows along axis 0'
    """
    state, index = states[:2]
    if Kind.UNKNOWN in (state.kind, index.kind):
        return NO_CLAIM
    if state.kind == Kind.ROWS and 0 in state.axes:
        if len(state.axes) == 1 and flow.rounds is not None and flow.rounds.own(index, state):
            return State(Kind.ONE, stride=state.stride, origin=state.origin)
        return flow.couple(operation, POSITION)
    if state.kind == Kind.ROWS and index.kind != Kind.ALIKE:
        return flow.couple(operation, PAIRS)
    if state.kind == Kind.ROWS:
        return state.at(*(axis - 1 for axis in state.axes))
    if state.kind == Kind.ALIKE and index.kind == Kind.ONE:
        return State(Kind.ONE, stride=OTHER if index.stride else 0, origin=index.origin)
    return state if index.kind in (Kind.ALIKE, Kind.ONE) else arithmetic.element_wise(flow, operation, [state, index])


def listed(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a list made from a tensor, or of a tensor made from a whole list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 0, dynamic_size=True).unstack(x).stack())
    'rows along axis 0'
    """
    return states[0]


def gathered(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor made of the elements at some indices.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 0, dynamic_size=True).unstack(x).gather([0, 1]))
    'unknown; TensorListGather takes examples by their place in the batch'
    """
    state, index = states[:2]
    if Kind.UNKNOWN in (state.kind, index.kind):
        return NO_CLAIM
    along = state.kind == Kind.ROWS and 0 in state.axes
    own = index.kind == Kind.ROWS and index.stride > 0 and index.stride == state.inner
    if along and not (own and len(state.axes) == 1):
        return flow.couple(operation, POSITION)
    if along:
        return state._replace(outer=index.outer, inner=index.inner, subset=index.subset)
    if state.kind == Kind.ROWS:
        return state if index.kind == Kind.ALIKE else NO_CLAIM
    if state.kind == Kind.ALIKE and index.kind == Kind.ROWS:
        return index._replace(stride=OTHER if index.stride else 0)
    return arithmetic.element_wise(flow, operation, [state, index])


def concatenated(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the elements one behind the other, and of their lengths.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 1).write(0, x).concat())
    'rows along axis 0; TensorListConcatV2 is not decided'
    """
    state = states[0]
    if state.kind != Kind.ROWS:
        return [state, state if state.kind == Kind.UNKNOWN else SAME]
    if len(state.axes) > 1:
        return [NO_CLAIM, NO_CLAIM]
    if state.axis == 0:
        return [state._replace(inner=None), NO_CLAIM]
    return [state._replace(axes=(state.axis - 1,), outer=None if state.axis == 1 else state.outer), NO_CLAIM]


def length(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the length of a list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 3).unstack(tf.transpose(x)).size())
    'alike'
    """
    state = states[0]
    if state.kind == Kind.ROWS and 0 in state.axes:
        return SIZE._replace(outer=state.each, origin=operation if state.subset else None)
    return state if state.kind == Kind.UNKNOWN else SAME


RULES: dict[str, Any] = {
    "TensorListReserve": made, "TensorListSetItem": put, "TensorListPushBack": pushed, "TensorListGetItem": got,
    "TensorListLength": length, "TensorListGather": gathered, "TensorListConcatV2": concatenated,
    **dict.fromkeys(("TensorListFromTensor", "TensorListStack"), listed),
}  # fmt: skip
