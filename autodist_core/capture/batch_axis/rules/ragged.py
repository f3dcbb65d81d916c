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
from autodist_core.capture.batch_axis.states.reduced import Number, Size
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, Ragged, Rows, Sizes, State

SPLITS, _ENDS, _STARTS, _SHAPE, _COUNT = map(
    Ragged, ("row splits", "row ends", "row starts", "shape of splits", "number of splits")
)
"""Where the rows of a ragged tensor of the batch begin and end, and what TensorFlow makes of that: the ends of the rows
without the starts are their lengths, one for each example, and there is one split more than there are examples."""

_FROM_LENGTHS = "RowPartitionFromRowLengths/"
"""The name scope in which TensorFlow adds the lengths of rows up to their ends."""

FLAT_VALUES = Rows(outer=None, inner=None, subset="flat values")
"""The state of the flat values of a ragged or sparse tensor of the batch. Values of two tensors that an operation
combines one by one belong to the same examples: otherwise a replica would have unlike numbers of them."""


def made(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the parts of a ragged tensor that is made of one entry of each example.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.strings.split(x).flat_values, None, dtype="string")
    'ragged'
    """
    given = [state for state in states if state != SAME]
    whole = all(isinstance(state, Rows) and state.are_one_each for state in given)
    return Ragged() if given and whole else NO_CLAIM


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

    >>> are_flat_values(FLAT_VALUES), are_flat_values(Rows())
    (True, False)
    """
    return isinstance(state, Rows) and state.subset == FLAT_VALUES.subset


def has_parts(states: Sequence[State]) -> bool:
    """Whether a part of a ragged or sparse tensor is among the inputs of an operation.

    >>> has_parts([Ragged(), Rows()]), has_parts([Rows()])
    (True, False)
    """
    return any(isinstance(state, Ragged) for state in states)


def _of_splits(operation: Any, states: Sequence[State]) -> State | None:
    """Return the state of what an operation makes of row splits, in the few forms in which TensorFlow uses them."""
    first, *others = states
    if first == SPLITS and operation.type == "StridedSlice":
        return _which(operation)
    if first == SPLITS and operation.type == "Shape":
        return _SHAPE
    if first == _SHAPE and operation.type == "StridedSlice" and operation.get_attr("shrink_axis_mask") == 1:
        return _COUNT
    if first == _COUNT and operation.type == "Sub" and others == [SAME] and value_of(operation.inputs[1]) == 1:
        return Size()
    if first == _ENDS and operation.type == "Sub" and others == [_STARTS]:
        return Rows()
    if first == SAME and operation.type == "ConcatV2" and others == [_ENDS, SAME]:
        return SPLITS
    return first if operation.type in ("Identity", "Cast") else None


def _which(operation: Any) -> Ragged | None:
    """Return whether a slice of row splits has the ends of all rows, or their starts."""
    begin, end, step = (value_of(tensor) for tensor in operation.inputs[1:4])
    if step is None or list(step) != [1] or operation.get_attr("shrink_axis_mask"):
        return None
    from_start = bool(operation.get_attr("begin_mask")) or (begin is not None and list(begin) == [0])
    to_end = bool(operation.get_attr("end_mask"))
    if begin is not None and list(begin) == [1] and to_end and not operation.get_attr("begin_mask"):
        return _ENDS
    return _STARTS if from_start and end is not None and list(end) == [-1] and not to_end else None


def ends_of_rows(operation: Any, state: State) -> State | None:
    """Return the state of the ends of rows of which a ragged tensor is made, one row for each example, from lengths.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> def three_each(x):
    ...     return tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill([tf.shape(x)[0]], 3))
    >>> shown(lambda x: (three_each(x).flat_values, three_each(x).row_splits))
    'rows along axis 0, row splits'
    """
    each = isinstance(state, Rows) and state.are_one_each
    return _ENDS if _FROM_LENGTHS in operation.name and operation.inputs[0].dtype.is_integer and each else None


def followed(operation: Any, states: Sequence[State]) -> State:
    """Return the state of the results of an operation on a part of a ragged tensor.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.strings.split(x).to_tensor(shape=[None, 4]), None, dtype="string")
    'rows along axis 0'
    """
    if (found := _of_splits(operation, states)) is not None:
        return found
    if not all(isinstance(state, (Alike, Number, Size, Ragged)) or are_flat_values(state) for state in states):
        return NO_CLAIM
    if operation.type in operations.RAGGED_TO_DENSE:
        crossed = operation.type == "SparseTensorDenseMatMul" and operation.get_attr("adjoint_a")
        return NO_CLAIM if crossed else Rows()
    exact = not any(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in operation.outputs)
    return Ragged() if exact and operation.type in operations.OF_RAGGED else NO_CLAIM


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
    if not (isinstance(indices, Rows) and indices.axes == (0,) and indices.stride == 1 and indices.subset):
        return NO_CLAIM
    same = isinstance(values, Rows) and values.subset == indices.subset and not values.stride
    if shape != Sizes(0) or not (same or values == SAME) or any(each != SAME for each in others):
        return NO_CLAIM
    crossed = operation.type == "SparseTensorDenseMatMul" and operation.get_attr("adjoint_a")
    return NO_CLAIM if crossed else Rows(degree=values.degree)


RULES: dict[str, Any] = {
    **dict.fromkeys(operations.TO_RAGGED, made), **dict.fromkeys(operations.SPARSE_TO_DENSE, of_places),
}  # fmt: skip
