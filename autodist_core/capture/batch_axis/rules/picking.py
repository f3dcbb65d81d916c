"""Rules for operations that take entries from tensors, or put entries into tensors: by index, and by segment.

In: the states of the inputs. Out: the state of the result. For `x` with the examples along its first axis::

    GatherV2(table, ids of x)   rows along axis 0
    GatherV2(x, 0)              a coupling: it takes examples by their position in the batch
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.rules import arithmetic, slices
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES, GIVEN, PAIRS, POSITION
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.operations import SAME as UNCHANGED
from autodist_core.capture.batch_axis.states.places import UNKNOWN_STRIDE
from autodist_core.capture.batch_axis.states.reduced import EXTREMES, Mixed, Size, Sum, size_in
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Distinct, One, Rows, Sizes, State
from autodist_core.step.op_types import WITHOUT_VALUES
from autodist_core.step.reaching import reached


def gather(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are taken along an axis, by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.gather(x, [0, 2], axis=1))
    'rows along axis 0'
    >>> shown(lambda x: tf.gather(x, [0, 1]))
    'unknown; GatherV2 takes examples by their place in the batch'
    """
    table, index = SAME if operation.type == "ResourceGather" else states[0], states[1]
    axes = [0]
    if operation.type == "GatherV2":
        axes = flow.axes_of(operation.inputs[2], operation.inputs[0].shape.rank)
    if not axes:
        return SAME if table == SAME and index == SAME else NO_CLAIM
    axis, rank = axes[0], operation.inputs[1].shape.rank
    batch = 0 if operation.type == "Gather" else operation.get_attr("batch_dims")
    match table, index:
        case Sizes(), _:
            return _of_sizes(operation, table)
        case _, Distinct():
            return index if table == SAME else NO_CLAIM
        case _ if rank is None or any(isinstance(each, Rows) and len(each.axes) > 1 for each in (table, index)):
            return NO_CLAIM
        case Rows(), Rows():
            return _rows_by_rows(flow, operation, table, index, axis, batch)
        case Rows(), _ if table.axis == axis:
            return _rows_by_place(flow, operation, table, index)
        case Rows(), _:
            return table.at(table.axis if table.axis < axis else table.axis + rank - batch - 1)
        case _, Rows() if not isinstance(table, (One, Size)):
            flow.couple_values([table], operation)
            # Constants by position are a function of positions. Distinct entries by position are each example's own.
            found = index.looked_up() if table == SAME else replace(index, stride=0)
            found_axis = index.axis if index.axis < batch else axis + index.axis - batch
            return replace(found, axes=(found_axis,), degree=0)
        case _:
            return arithmetic.element_wise(flow, operation, [table, index])


def _of_sizes(operation: Any, table: Sizes) -> State:
    """Return the state of some sizes of a shape, or of one size."""
    places = value_of(operation.inputs[1])
    if places is None or np.ndim(places) > 1:
        return NO_CLAIM
    found = [at for at, place in enumerate(np.atleast_1d(places)) if place == table.place]
    return SAME if not found else table.at(found[0]) if np.ndim(places) else size_in(table)


def _rows_by_rows(flow: Any, operation: Any, table: Rows, index: Rows, axis: int, batch: int) -> State:
    """Return the state of entries of examples that are taken by numbers of examples: their own ones, if all is well."""
    if table.axis < batch and table.axis == index.axis:
        return table
    if table.axis != axis:
        return flow.couple(operation, PAIRS)
    if not _is_own(index, table):
        return flow.couple(operation, _how(flow, operation.inputs[1], POSITION))
    return _picked(operation, table, index).at(axis + index.axis)


def _rows_by_place(flow: Any, operation: Any, table: Rows, index: State) -> State:
    """Return the state of examples that are taken by numbers that are not those of examples."""
    if flow.rounds is not None and flow.rounds.own(index, table):
        return table.entry()
    if index == SAME or isinstance(index, One) or index.couples:
        return flow.couple(operation, _how(flow, operation.inputs[1], POSITION))
    return flow.couple(operation, GIVEN) if _how(flow, operation.inputs[1], "") == GIVEN else NO_CLAIM


def _how(flow: Any, index: Any, otherwise: str) -> str:
    """What is said of indices into the rows of a batch: whether they are given with the batch, as the edges of a graph.

    Such an index may be any number below the size of the whole batch. One that is computed, as by a sort, is not.
    """

    def read(operation: Any) -> Iterator[Any]:
        inputs = operation.inputs if operation.type in _KEEPING else ()
        values = slice(1) if operation.type in _OF_FIRST else slice(operation.type in ("Select", "SelectV2"), None)
        return (tensor.op for tensor in inputs[values])

    made_of = [each for each in reached([index.op], read) if each.type not in _KEEPING | _OF_CONSTANTS]
    of_rows, numbers = isinstance(flow.state_of(index), Rows), all(each.type == "Placeholder" for each in made_of)
    return GIVEN if numbers and any(flow.is_input(each, of_rows) for each in made_of) else otherwise


_OF_CONSTANTS = {*WITHOUT_VALUES, "Const", "Fill"}
_OF_FIRST = {"ExpandDims", "Reshape", "Slice", "Squeeze", "StridedSlice", "Tile", "Transpose"}
_KEEPING = {
    *UNCHANGED, *_OF_FIRST, "Add", "AddV2", "ConcatV2", "Maximum", "Mul", "Pack", "Select", "SelectV2", "Split", "Sub",
    "Unpack",
}
"""Operations behind which numbers that are given with a batch are still such numbers."""


def _is_own(index: State, table: Rows) -> bool:
    """Whether positions of examples are those of their own entries in a table."""
    if index.stride == UNKNOWN_STRIDE:
        return table.outer == 1 and table.inner is None
    # Where the batch is there several times, positions are in the first one.
    return index.stride > 0 and (index.stride == table.inner or (table.outer == 1 and table.inner is None))


def _picked(operation: Any, table: Rows, index: Rows) -> Rows:
    """Return the state of the entries of a table that belong to the examples of the index."""
    found = replace(table, axes=index.axes, outer=index.outer, inner=index.inner)
    return replace(found, subset=index.subset, origin=table.origin or operation) if index.subset else found


def gather_nd(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are taken by index vectors.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.gather_nd(tf.ones([5, 4]), x), None, 2, dtype="int32")
    'rows along axis 0'
    """
    table, index = (SAME, states[1]) if operation.type == "ResourceGatherNd" else states[:2]
    depth = operation.inputs[1].shape[-1] if operation.inputs[1].shape.rank else None
    if isinstance(index, Rows) and isinstance(table, Rows):
        if not _is_own(index, table) and (depth is None or any(axis < depth for axis in table.axes)):
            return flow.couple(operation, _how(flow, operation.inputs[1], POSITION))
        return _picked(operation, table, index)
    if isinstance(index, Rows):
        flow.couple_values([table], operation)
        return index.looked_up()
    if isinstance(table, Rows):
        at_place = index == SAME and depth is not None and any(axis < depth for axis in table.axes)
        return flow.couple(operation, POSITION) if at_place else NO_CLAIM
    return arithmetic.element_wise(flow, operation, [table, index])


def scatter(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a new tensor to which entries are added by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.scatter_nd(x, x[:, 0], [4]), None, 1, dtype="int32")
    'a sum over the examples'
    """
    index, values, asked = states
    if NO_CLAIM in (index, values):
        return NO_CLAIM
    if index == SAME == values:
        return SAME
    if _of_others(flow, operation, index, values):
        return NO_CLAIM
    if index.stride == 1:
        return Rows((asked.place if isinstance(asked, Sizes) else 0,), inner=None if _is_chosen(index) else 1)
    with_rows = isinstance(index, Rows) or isinstance(values, Rows)
    if isinstance(asked, Sizes):
        return flow.couple(operation, _how(flow, operation.inputs[0], PAIRS) if with_rows else POSITION)
    return Sum(1, operation) if with_rows else arithmetic.element_wise(flow, operation, states[:2])


def _is_chosen(index: State) -> bool:
    """Whether positions are those of chosen examples only."""
    return isinstance(index, Rows) and bool(index.subset)


def _of_others(flow: Any, operation: Any, index: State, values: State) -> bool:
    """Whether the numbers of one example may be with the entries of another one, as in `repeat` beside `tile`."""
    if not isinstance(index, Rows) or not isinstance(values, Rows) or index.axes != (0,) or values.axes != (0,):
        return False
    # The values of a ragged tensor, and the numbers of their rows, come from different conditions.
    return index.subset == values.subset and aligned(flow, operation, [index, values]) is None


def scatter_on(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor to which entries are written by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.tensor_scatter_nd_update(tf.zeros([4, 3]), [[0]], tf.reduce_sum(x, 0)[tf.newaxis]))
    'mixed'
    """
    table, index, values = states
    if NO_CLAIM in (table, index, values):
        return NO_CLAIM
    if isinstance(table, Rows):
        depth = operation.inputs[1].shape[-1] if operation.inputs[1].shape.rank else None
        inside = depth is not None and all(axis >= depth for axis in table.axes)
        if not inside and not _is_own(index, table):
            what = POSITION if not isinstance(index, Rows) else _how(flow, operation.inputs[1], PAIRS)
            return flow.couple(operation, what)
        flow.couple_values([values], operation)
        return table
    if table == SAME and (isinstance(index, Rows) or isinstance(values, Rows)):
        if "Add" in operation.type or "Sub" in operation.type:
            zeros = value_of(operation.inputs[0])
            summed = zeros is not None and not np.any(zeros) and index.stride == 0
            return Sum(1 + values.degree, operation) if summed else Mixed(operation)
        return EXTREMES.get(operation.type[-3:], Mixed)(operation)
    return arithmetic.element_wise(flow, operation, states)


def segments(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are reduced by segment.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0], tf.int32), 4))
    'a sum over the examples'
    >>> shown(lambda x: (tf.math.segment_sum(x, tf.cast(x[:, 0], tf.int32)), tf.math.unsorted_segment_sum(x, 0, 1)))
    'unknown, rows along axis 1; SegmentSum is not decided'
    >>> shown(lambda x: tf.math.unsorted_segment_sum(tf.transpose(x)[tf.newaxis], [[0, 1, 0]], 2))
    'rows along axis 1'
    """
    values, index = states[0], states[1]
    if NO_CLAIM in (values, index):
        return NO_CLAIM
    if not isinstance(values, Rows) and not isinstance(index, Rows):
        return arithmetic.element_wise(flow, operation, states[:2])
    if _of_others(flow, operation, index, values):
        return NO_CLAIM
    counted = len(states) > 2 and isinstance(states[2], Size)
    if index.stride == 1:
        # As many segments as examples: one for each, also for those that have no entry left.
        one_each = counted and states[2] == Size()
        return Rows(inner=1 if one_each or not _is_chosen(index) else None)
    if isinstance(index, Rows) and counted and _how(flow, operation.inputs[1], "") == GIVEN:
        return flow.couple(operation, GIVEN)
    rank = operation.inputs[1].shape.rank
    if isinstance(values, Rows) and index == SAME and rank is not None and values.axis >= rank:
        return values.at(*(axis - rank + 1 for axis in values.axes))
    if not operation.type.startswith("Unsorted"):
        # The largest number among a replica's examples says how many segments its result has.
        return NO_CLAIM
    if "Sum" in operation.type and not index.stride:
        return Sum(1 + values.degree, operation)
    return EXTREMES.get(operation.type[-3:], Mixed)(operation)


def parted(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of entries that are sorted into several tensors by a number of each.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, tf.int32), 2)[1])
    'rows along axis 0'
    """
    by_example = all(isinstance(state, Rows) and state.axes == (0,) for state in states)
    if not by_example or aligned(flow, operation, states) is None:
        return [NO_CLAIM] * len(operation.outputs)
    return [Rows(outer=None, inner=None, subset=(id(operation), part)) for part in range(len(operation.outputs))]


def counts(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the counts of each number, over all entries or in each row of a matrix.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.math.bincount(x, minlength=4, maxlength=4), None, dtype="int32")
    'a sum over the examples'
    """
    state = states[0]
    if not isinstance(state, Rows):
        return arithmetic.element_wise(flow, operation, states[:1])
    in_rows = operation.type == "DenseBincount" and operation.inputs[0].shape.rank == 2 and state.axes == (0,)
    return state if in_rows else Sum(1, operation)


def searched(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the places of values in sorted sequences: those of each row are looked up in the same row.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.searchsorted([0.0, 1.0], x[:, 0]), tf.searchsorted(x, x)))
    'rows along axis 0, rows along axis 0'
    >>> shown(lambda x: tf.searchsorted(x[:, 0], [0.0, 1.0]))
    'unknown; LowerBound goes along the examples of a batch'
    """
    sequence, values = states
    if isinstance(sequence, Rows) and sequence.axes != (0,):
        return flow.couple(operation, ALONG_EXAMPLES)
    if not isinstance(sequence, Rows) and isinstance(values, Rows) and values.axes == (1,):
        # The sequence may have any number of entries: they are not paired with those of the values.
        flow.couple_values([sequence], operation)
        return replace(values.looked_up(), degree=0)
    return arithmetic.element_wise(flow, operation, states)


RULES: dict[str, Any] = {
    **slices.RULES, "GatherV2": gather, "Gather": gather, "ResourceGather": gather,
    "DynamicPartition": parted, "GatherNd": gather_nd, "ResourceGatherNd": gather_nd, "ScatterNd": scatter,
    "Bincount": counts, "DenseBincount": counts, "LowerBound": searched, "UpperBound": searched,
    **dict.fromkeys(
        ("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin"),
        scatter_on,
    ),
    **dict.fromkeys(
        ("SegmentSum", "SegmentSumV2", "SegmentMean", "SegmentMax", "SegmentMaxV2", "SegmentMin", "SegmentMinV2",
         "UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"), segments,
    ),
}  # fmt: skip
