"""Rules for operations that take entries from tensors, or put entries into tensors: by index, and by segment.

In: the states of the inputs. Out: the state of the result. For `x` with the examples along its first axis::

    GatherV2(table, ids of x)   rows along axis 0
    GatherV2(x, 0)              a coupling: it takes examples by their position in the batch
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.rules import arithmetic, slices
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES, GIVEN, PAIRS, POSITION
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.operations import SAME as UNCHANGED
from autodist_core.capture.batch_axis.states.places import OTHER, UNKNOWN_STRIDE
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Kind, State, rows

_EXTREMES = {"Max": Kind.LARGEST, "Min": Kind.SMALLEST}


def gather(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are taken along an axis, by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.gather(x, [0, 2], axis=1))
    'rows along axis 0'
    >>> shown(lambda x: tf.gather(x, [0, 1]))
    'unknown; GatherV2 takes examples by their place in the batch'
    """
    if operation.type == "ResourceGather":
        table, index, axis, batch = SAME, states[1], 0, operation.get_attr("batch_dims")
    else:
        table, index, batch = states[0], states[1], 0
        axes = [0]
        if operation.type == "GatherV2":
            batch = operation.get_attr("batch_dims")
            axes = flow.axes_of(operation.inputs[2], operation.inputs[0].shape.rank) or []
        if not axes:
            return NO_CLAIM if table.kind != Kind.ALIKE or index.kind != Kind.ALIKE else SAME
        axis = axes[0]
    rank = operation.inputs[1].shape.rank
    if table.kind == Kind.SIZES:
        places = value_of(operation.inputs[1])
        if places is None or np.ndim(places) > 1:
            return NO_CLAIM
        found = [at for at, place in enumerate(np.atleast_1d(places)) if place == table.axis]
        size = State(Kind.SUM, degree=1, outer=table.outer, origin=table.origin)
        return SAME if not found else table.at(found[0]) if np.ndim(places) else size
    if index.kind == Kind.DISTINCT:
        return index if table.kind == Kind.ALIKE else NO_CLAIM
    if rank is None or any(len(state.axes) > 1 for state in (table, index)):
        return NO_CLAIM
    if index.kind == Kind.ROWS and (table.kind in (Kind.DISTINCT, Kind.ALIKE, Kind.UNKNOWN) or table.couples):
        if table.couples:
            flow.couple_values([table], operation)
        found_axis = index.axis if index.axis < batch else axis + index.axis - batch
        # Constants by position are a function of positions. Distinct entries by position are each example's own.
        stride = OTHER if index.stride and table.kind == Kind.ALIKE else 0
        return index._replace(axes=(found_axis,), stride=stride, degree=0)
    if table.kind == Kind.ROWS and index.kind == Kind.ROWS:
        if table.axis < batch and table.axis == index.axis:
            return table
        if table.axis != axis:
            return flow.couple(operation, PAIRS)
        if not _is_own(index, table):
            return flow.couple(operation, _how(flow, operation.inputs[1], POSITION))
        return _picked(operation, table, index)._replace(
            axes=(axis + index.axis,), outer=index.outer, inner=index.inner
        )
    if table.kind == Kind.ROWS and table.axis == axis:
        if flow.rounds is not None and flow.rounds.own(index, table):
            return State(Kind.ONE, stride=table.stride, origin=table.origin)
        if index.kind in (Kind.ALIKE, Kind.ONE) or index.couples:
            flow.couple(operation, _how(flow, operation.inputs[1], POSITION))
        elif _how(flow, operation.inputs[1], "") == GIVEN:
            flow.couple(operation, GIVEN)
        return NO_CLAIM
    if table.kind == Kind.ROWS:
        return table.at(table.axis if table.axis < axis else table.axis + rank - batch - 1)
    return arithmetic.element_wise(flow, operation, [table, index])


def _how(flow: Any, index: Any, otherwise: str) -> str:
    """What is said of indices into the rows of a batch: whether they are given with the batch, as the edges of a graph.

    Such an index may be any number below the size of the whole batch. One that is computed, as by a sort, is not.
    """
    waiting, seen, given, of_rows = [index], set(), False, flow.state_of(index).kind == Kind.ROWS
    while waiting:
        operation = waiting.pop().op
        if id(operation) in seen or operation.type in _OF_CONSTANTS:
            continue
        seen.add(id(operation))
        if operation.type == "Placeholder":
            given |= flow.is_input(operation, of_rows)
        elif operation.type not in _KEEPING:
            return otherwise
        choice = operation.type in ("Select", "SelectV2")
        waiting += operation.inputs[:1] if operation.type in _OF_FIRST else list(operation.inputs)[choice:]
    return GIVEN if given else otherwise


_OF_CONSTANTS = {"Const", "Shape", "ShapeN", "Size", "ZerosLike", "OnesLike", "Fill"}
_OF_FIRST = {"ExpandDims", "Reshape", "Slice", "Squeeze", "StridedSlice", "Tile", "Transpose"}
_KEEPING = {
    *UNCHANGED, *_OF_FIRST, "Add", "AddV2", "ConcatV2", "Maximum", "Mul", "Pack", "Select", "SelectV2", "Split", "Sub",
    "Unpack",
}
"""Operations behind which numbers that are given with a batch are still such numbers."""


def _is_own(index: State, table: State) -> bool:
    """Whether positions of examples are those of their own entries in a table."""
    if index.stride == UNKNOWN_STRIDE:
        return table.outer == 1 and table.inner is None
    # Where the batch is there several times, positions are in the first one.
    return index.stride > 0 and (index.stride == table.inner or (table.outer == 1 and table.inner is None))


def _picked(operation: Any, table: State, index: State) -> State:
    return table._replace(subset=index.subset, origin=table.origin or operation) if index.subset else table


def gather_nd(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are taken by index vectors.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.gather_nd(tf.ones([5, 4]), x), None, 2, dtype="int32")
    'rows along axis 0'
    """
    table, index = (SAME, states[1]) if operation.type == "ResourceGatherNd" else states[:2]
    depth = operation.inputs[1].shape[-1] if operation.inputs[1].shape.rank else None
    if index.kind == Kind.ROWS and table.kind == Kind.ROWS:
        if not _is_own(index, table) and (depth is None or any(axis < depth for axis in table.axes)):
            return flow.couple(operation, _how(flow, operation.inputs[1], POSITION))
        return _picked(operation, table, index)._replace(axes=index.axes, outer=index.outer, inner=index.inner)
    if index.kind == Kind.ROWS:
        flow.couple_values([table], operation)
        return index._replace(stride=OTHER if index.stride else 0)
    if table.kind == Kind.ROWS:
        if index.kind == Kind.ALIKE and depth is not None and any(axis < depth for axis in table.axes):
            flow.couple(operation, POSITION)
        return NO_CLAIM
    return arithmetic.element_wise(flow, operation, [table, index])


def scatter(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a new tensor to which entries are added by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.scatter_nd(x, x[:, 0], [4]), None, 1, dtype="int32")
    'a sum over the examples'
    """
    index, values, asked = states
    if Kind.UNKNOWN in (index.kind, values.kind):
        return NO_CLAIM
    if index.kind == Kind.ALIKE and values.kind == Kind.ALIKE:
        return SAME
    if _of_others(flow, operation, index, values):
        return NO_CLAIM
    if index.stride == 1:
        return rows(asked.axes[0] if asked.kind == Kind.SIZES else 0, inner=None if index.subset else 1)
    if asked.kind == Kind.SIZES:
        what = _how(flow, operation.inputs[0], PAIRS) if Kind.ROWS in (index.kind, values.kind) else POSITION
        return flow.couple(operation, what)
    if Kind.ROWS in (index.kind, values.kind):
        return State(Kind.SUM, degree=1, origin=operation)
    return arithmetic.element_wise(flow, operation, states[:2])


def _of_others(flow: Any, operation: Any, index: State, values: State) -> bool:
    """Whether the numbers of one example may be with the entries of another one, as in `repeat` beside `tile`."""
    if index.kind != Kind.ROWS or values.kind != Kind.ROWS or index.axes != (0,) or values.axes != (0,):
        return False
    if index.subset != values.subset:
        return False  # The values of a ragged tensor, and the numbers of their rows, come from different conditions.
    return aligned(flow, operation, [index, values]) is None


def scatter_on(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor to which entries are written by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.tensor_scatter_nd_update(tf.zeros([4, 3]), [[0]], tf.reduce_sum(x, 0)[tf.newaxis]))
    'mixed'
    """
    table, index, values = states
    if Kind.UNKNOWN in (table.kind, index.kind, values.kind):
        return NO_CLAIM
    if table.kind == Kind.ROWS:
        depth = operation.inputs[1].shape[-1] if operation.inputs[1].shape.rank else None
        inside = depth is not None and all(axis >= depth for axis in table.axes)
        if not inside and not _is_own(index, table):
            what = POSITION if index.kind != Kind.ROWS else _how(flow, operation.inputs[1], PAIRS)
            return flow.couple(operation, what)
        flow.couple_values([values], operation)
        return table
    if table.kind == Kind.ALIKE and Kind.ROWS in (index.kind, values.kind):
        if "Add" in operation.type or "Sub" in operation.type:
            zeros = value_of(operation.inputs[0])
            summed = zeros is not None and not np.any(zeros) and index.stride == 0
            kind, degree = (Kind.SUM, 1 + values.degree) if summed else (Kind.MIXED, 0)
            return State(kind, degree=degree, origin=operation)
        return State(_EXTREMES.get(operation.type[-3:], Kind.MIXED), origin=operation)
    return arithmetic.element_wise(flow, operation, states)


def segments(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are reduced by segment.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0], tf.int32), 4))
    'a sum over the examples'
    >>> shown(lambda x: tf.math.segment_sum(x, tf.cast(x[:, 0], tf.int32)))
    'unknown; SegmentSum is not decided'
    """
    values, index = states[0], states[1]
    if Kind.UNKNOWN in (values.kind, index.kind):
        return NO_CLAIM
    if Kind.ROWS not in (values.kind, index.kind):
        return arithmetic.element_wise(flow, operation, states[:2])
    if _of_others(flow, operation, index, values):
        return NO_CLAIM
    counted = len(states) > 2 and states[2].is_size
    if index.stride == 1:
        # As many segments as examples: one for each, also for those that have no entry left.
        one_each = counted and states[2].degree == states[2].outer == 1
        return rows(0, inner=1 if one_each or not index.subset else None)
    if index.kind == Kind.ROWS and counted and _how(flow, operation.inputs[1], "") == GIVEN:
        return flow.couple(operation, GIVEN)
    if values.kind == Kind.ROWS and index.kind == Kind.ALIKE and values.axis != 0:
        return values
    if not operation.type.startswith("Unsorted"):
        # The largest number among a replica's examples says how many segments its result has.
        return NO_CLAIM
    if "Sum" in operation.type and not index.stride:
        return State(Kind.SUM, degree=1 + values.degree, origin=operation)
    kind = next((kind for name, kind in _EXTREMES.items() if name in operation.type), Kind.MIXED)
    return State(kind, origin=operation)


def parted(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of entries that are sorted into several tensors by a number of each.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.dynamic_partition(x, tf.cast(x[:, 0] > 0, tf.int32), 2)[1])
    'rows along axis 0'
    """
    values, number = states
    if values.kind != Kind.ROWS or number.kind != Kind.ROWS or values.axes != (0,) or number.axes != (0,):
        return [NO_CLAIM] * len(operation.outputs)
    if aligned(flow, operation, states) is None:
        return [NO_CLAIM] * len(operation.outputs)
    return [rows(0, outer=None, inner=None, subset=(id(operation), part)) for part in range(len(operation.outputs))]


def counts(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the counts of each number, over all entries or in each row of a matrix.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.math.bincount(x, minlength=4, maxlength=4), None, dtype="int32")
    'a sum over the examples'
    """
    if states[0].kind != Kind.ROWS:
        return arithmetic.element_wise(flow, operation, states[:1])
    if operation.type == "DenseBincount" and operation.inputs[0].shape.rank == 2 and states[0].axes == (0,):
        return states[0]
    return State(Kind.SUM, degree=1, origin=operation)


def searched(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the places of values in sorted sequences: those of each row are looked up in the same row.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.searchsorted([0.0, 1.0], x[:, 0]), tf.searchsorted(x, x)))
    'rows along axis 0, rows along axis 0'
    >>> shown(lambda x: tf.searchsorted(x[:, 0], [0.0, 1.0]))
    'unknown; LowerBound goes along the examples of a batch'
    """
    sequence, values = states
    if sequence.kind == Kind.ROWS and sequence.axes != (0,):
        return flow.couple(operation, ALONG_EXAMPLES)
    if sequence.kind != Kind.ROWS and values.kind == Kind.ROWS and values.axes == (1,):
        # The sequence may have any number of entries: they are not paired with those of the values.
        flow.couple_values([sequence], operation)
        return values._replace(stride=OTHER if values.stride else 0, degree=0)
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
