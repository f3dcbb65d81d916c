"""Ragged and sparse tensors of strings and integers: each example has any number of entries, as a text has words.

In: an operation with a part of such a tensor among its inputs, or one that makes such a tensor. Out: the state of its
results. For texts with the examples along their first axis::

    StringSplitV2(texts)     ragged: the words of all texts, and which text each word is of
    LookupTableFindV2        ragged
    RaggedTensorToTensor     rows along axis 0
    Sum                      not known: it may add up the words of several texts

TensorFlow computes where the entries of each example begin with sums and maxima over all entries. This is no mixing as
long as only strings and integers go in and come out.

The flat values of a ragged or sparse tensor of the batch are rows: any number of them for each example. A sum over
them is a sum over the examples. A mean over them is not a mean over the examples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.batch_axis.states import operations
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SIZE, Kind, State, rows

SPLITS, _ENDS, _STARTS, _SHAPE, _COUNT = "row splits", "row ends", "row starts", "shape of splits", "number of splits"
"""Where the rows of a ragged tensor of the batch begin and end, and what TensorFlow makes of that: the ends of the rows
without the starts are their lengths, one for each example, and there is one split more than there are examples."""
_PARTS = (Kind.RAGGED, SPLITS, _ENDS, _STARTS, _SHAPE, _COUNT)
_FROM_LENGTHS = "RowPartitionFromRowLengths/"
"""The name scope in which TensorFlow adds the lengths of rows up to their ends."""

FLAT_VALUES = rows(0, outer=None, inner=None, subset="flat values")
"""The state of the flat values of a ragged or sparse tensor of the batch. Values of two tensors that an operation
combines one by one belong to the same examples: otherwise a replica would have unlike numbers of them."""


def made(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the parts of a ragged tensor that is made of one entry of each example.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.strings.split(x).flat_values, None, dtype="string")
    'ragged'
    """
    with_rows = [state for state in states if state.kind == Kind.ROWS]
    whole = all(state.axes == (0,) and state.each == 1 and not state.subset and not state.stride for state in with_rows)
    return State(Kind.RAGGED) if with_rows and whole and len(with_rows) == _count(states) else NO_CLAIM


def pads(operation: Any) -> bool:
    """Whether an operation makes a ragged tensor dense, and the ragged tensor decides the size of an axis.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     texts = tf.strings.split(["a b", "c"])
    ...     pads(texts.to_tensor().op), pads(texts.to_tensor(shape=[None, 4]).op)
    (True, False)
    """
    if operation.type != "RaggedTensorToTensor":
        return False
    shape = tf.get_static_value(operation.inputs[0])
    return shape is not None and bool(np.ndim(shape) == 0 or (shape[1:] < 0).any())


def are_flat_values(state: State) -> bool:
    """Whether a tensor has one entry for each flat value of a ragged or sparse tensor of the batch.

    >>> are_flat_values(FLAT_VALUES), are_flat_values(rows(0))
    (True, False)
    """
    return state.kind == Kind.ROWS and state.subset == FLAT_VALUES.subset


def _count(states: Sequence[State]) -> int:
    return sum(state.kind != Kind.ALIKE for state in states)


def has_parts(states: Sequence[State]) -> bool:
    """Whether a part of a ragged or sparse tensor is among the inputs of an operation.

    >>> has_parts([State(Kind.RAGGED), rows(0)]), has_parts([rows(0)])
    (True, False)
    """
    return any(state.kind in _PARTS for state in states)


def _of_splits(operation: Any, states: Sequence[State]) -> State | None:
    """Return the state of what an operation makes of row splits, in the few forms in which TensorFlow uses them."""
    kinds = tuple(state.kind for state in states)
    if kinds[0] == SPLITS and operation.type == "StridedSlice":
        return State(_which(operation)) if _which(operation) else None
    if kinds == (_ENDS, _STARTS) and operation.type == "Sub":
        return rows(0)
    if kinds == (Kind.ALIKE, _ENDS, Kind.ALIKE) and operation.type == "ConcatV2":
        return State(SPLITS)
    if kinds == (SPLITS,) and operation.type == "Shape":
        return State(_SHAPE)
    if kinds[0] == _SHAPE and operation.type == "StridedSlice" and operation.get_attr("shrink_axis_mask") == 1:
        return State(_COUNT)
    if kinds == (_COUNT, Kind.ALIKE) and operation.type == "Sub" and value_of(operation.inputs[1]) == 1:
        return SIZE
    return states[0] if operation.type in ("Identity", "Cast") else None


def _which(operation: Any) -> str:
    """Return whether a slice of row splits has the ends of all rows, or their starts."""
    begin, end, step = (value_of(tensor) for tensor in operation.inputs[1:4])
    if step is None or list(step) != [1] or operation.get_attr("shrink_axis_mask"):
        return ""
    from_start = bool(operation.get_attr("begin_mask")) or (begin is not None and list(begin) == [0])
    to_end = bool(operation.get_attr("end_mask"))
    if begin is not None and list(begin) == [1] and to_end and not operation.get_attr("begin_mask"):
        return _ENDS
    return _STARTS if from_start and end is not None and list(end) == [-1] and not to_end else ""


def ends_of_rows(operation: Any, state: State) -> State | None:
    """Return the state of the ends of rows of which a ragged tensor is made, one row for each example, from lengths.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> def three_each(x):
    ...     return tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill([tf.shape(x)[0]], 3))
    >>> shown(lambda x: (three_each(x).flat_values, three_each(x).row_splits))
    'rows along axis 0, row splits'
    """
    each = state.kind == Kind.ROWS and state.axes == (0,) and state.each == 1 and not state.subset and not state.stride
    return State(_ENDS) if _FROM_LENGTHS in operation.name and operation.inputs[0].dtype.is_integer and each else None


def followed(operation: Any, states: Sequence[State]) -> State:
    """Return the state of the results of an operation on a part of a ragged tensor.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.strings.split(x).to_tensor(shape=[None, 4]), None, dtype="string")
    'rows along axis 0'
    """
    if (found := _of_splits(operation, states)) is not None:
        return found
    known = (Kind.ALIKE, Kind.NUMBER, *_PARTS)
    if not all(state.kind in known or state.is_size or are_flat_values(state) for state in states):
        return NO_CLAIM
    if operation.type in operations.RAGGED_TO_DENSE:
        crossed = operation.type == "SparseTensorDenseMatMul" and operation.get_attr("adjoint_a")
        return NO_CLAIM if crossed else rows(0)
    exact = not any(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in operation.outputs)
    return State(Kind.RAGGED) if exact and operation.type in operations.OF_RAGGED else NO_CLAIM


def of_places(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of what is made of a sparse tensor whose indices are places of entries in the batch.

    The indices say only which entries are of which example, if the sparse tensor has as many rows as the batch.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.sparse.to_dense(tf.sparse.from_dense(x)))
    'rows along axis 0'
    >>> shown(lambda x: tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(x), tf.ones([3, 2])))
    'rows along axis 0'
    >>> shown(lambda x: tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(x), x, adjoint_a=True))
    'unknown; Where gives each example a value of its place in the batch'
    """
    order = operations.SPARSE_TO_DENSE[operation.type]
    indices, values, shape = (states[at] for at in order)
    others = [state for at, state in enumerate(states) if at not in order]
    own = indices.kind == Kind.ROWS and indices.axes == (0,) and indices.stride == 1 and indices.subset
    same = values.kind == Kind.ROWS and values.subset == indices.subset and not values.stride
    whole = shape.kind == Kind.SIZES and shape.axes == (0,) and shape.outer == 1 and not shape.subset
    if not (own and whole and (same or values.kind == Kind.ALIKE) and all(each.kind == Kind.ALIKE for each in others)):
        return NO_CLAIM
    crossed = operation.type == "SparseTensorDenseMatMul" and operation.get_attr("adjoint_a")
    return NO_CLAIM if crossed else rows(0, degree=values.degree)


RULES: dict[str, Any] = {
    **dict.fromkeys(operations.TO_RAGGED, made), **dict.fromkeys(operations.SPARSE_TO_DENSE, of_places),
}  # fmt: skip
