"""Rules for the lists of tensors that loops read and write.

In: the states of a list, an index and an element. Out: the states of the results. For a list of the n examples::

    TensorListGetItem(list, counter of the examples)    one: the element belongs to one example
    TensorListGetItem(list, 0)                          a coupling: it takes examples by their place in the batch
    TensorListLength(list)                              a size

The first axis of a list's state is along the list; the others are those of its elements.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis.rules import arithmetic
from autodist_core.capture.batch_axis.rules.inner import combined
from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES, PAIRS, POSITION
from autodist_core.capture.batch_axis.states.reduced import Size, size_in
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, One, Rows, State


def made(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of an empty list of a given length.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, tf.shape(x)[0]).size())
    'the number of examples'
    """
    length = states[1]
    return Rows(outer=length.times, free=True) if isinstance(length, Size) and length.degree == 1 else SAME


def put(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a list into which an element is put at an index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 2).write(0, x).write(1, 2 * x).stack())
    'rows along axis 1'
    """
    here, index, item = states[0], states[1], states[-1]
    if NO_CLAIM in (here, index, item):
        return NO_CLAIM
    along = isinstance(here, Rows) and 0 in here.axes
    if index.stride == 1 and flow.rounds is not None and (not along or flow.rounds.own(index, here)):
        if isinstance(item, Rows):
            return flow.couple(operation, PAIRS)
        flow.couple_values([item], operation)
        return combined(here, flow.rounds.listed(item if isinstance(item, One) else SAME))
    if along or index.stride or not isinstance(index, (Alike, One)):
        return flow.couple(operation, POSITION)
    if item == SAME and isinstance(index, One):
        return combined(here, One())
    return combined(here, _element(item))


def _element(item: State) -> State:
    """Return the state of a list of elements: the first axis of its state is along the list."""
    return item.at(*(axis + 1 for axis in item.axes)) if isinstance(item, Rows) else item


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
    if isinstance(item, One) or (isinstance(here, Rows) and 0 in here.axes):
        return NO_CLAIM if flow.tape.made(operation) else flow.couple(operation, ALONG_EXAMPLES)
    return combined(here, _element(item))


def got(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of one element of a list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 1).write(0, x).read(0))
    'rows along axis 0'
    """
    state, index = states[:2]
    if NO_CLAIM in (state, index):
        return NO_CLAIM
    if isinstance(state, Rows) and 0 in state.axes:
        own = len(state.axes) == 1 and flow.rounds is not None and flow.rounds.own(index, state)
        return state.entry() if own else flow.couple(operation, POSITION)
    if isinstance(state, Rows):
        return state.at(*(axis - 1 for axis in state.axes)) if index == SAME else flow.couple(operation, PAIRS)
    if state == SAME and isinstance(index, One):
        return index.looked_up()
    return state if isinstance(index, (Alike, One)) else arithmetic.element_wise(flow, operation, [state, index])


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
    if NO_CLAIM in (state, index):
        return NO_CLAIM
    if isinstance(state, Rows) and 0 not in state.axes:
        return state if index == SAME else NO_CLAIM
    if isinstance(state, Rows):
        if not isinstance(index, Rows) or not 0 < index.stride == state.inner or len(state.axes) > 1:
            return flow.couple(operation, POSITION)
        return replace(state, outer=index.outer, inner=index.inner, subset=index.subset)
    if state == SAME and isinstance(index, Rows):
        return index.looked_up()
    return arithmetic.element_wise(flow, operation, [state, index])


def concatenated(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the elements one behind the other, and of their lengths.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 1).write(0, x).concat())
    'rows along axis 0; TensorListConcatV2 is not decided'
    """
    state = states[0]
    if not isinstance(state, Rows):
        return [state, NO_CLAIM if state == NO_CLAIM else SAME]
    if len(state.axes) > 1:
        return [NO_CLAIM, NO_CLAIM]
    if state.axis == 0:
        return [replace(state, inner=None), NO_CLAIM]
    return [replace(state, axes=(state.axis - 1,), outer=None if state.axis == 1 else state.outer), NO_CLAIM]


def length(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the length of a list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 3).unstack(tf.transpose(x)).size())
    'alike'
    """
    state = states[0]
    if isinstance(state, Rows) and 0 in state.axes:
        return size_in(state.sizes(operation))
    return NO_CLAIM if state == NO_CLAIM else SAME


RULES: dict[str, Any] = {
    "TensorListReserve": made, "TensorListSetItem": put, "TensorListPushBack": pushed, "TensorListGetItem": got,
    "TensorListLength": length, "TensorListGather": gathered, "TensorListConcatV2": concatenated,
    **dict.fromkeys(("TensorListFromTensor", "TensorListStack"), listed),
}  # fmt: skip
