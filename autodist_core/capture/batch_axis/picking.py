"""Rules for operations that take entries from tensors, or put entries into tensors: slices, indices and segments.

In: the states of the inputs. Out: the state of the result. For `x` with the examples along its first axis::

    StridedSlice(x)[:, 0]       rows along axis 0
    StridedSlice(x)[0]          a coupling: it takes examples by their position in the batch
    GatherV2(table, ids of x)   rows along axis 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis import arithmetic
from autodist_core.capture.batch_axis.constants import value_of
from autodist_core.capture.batch_axis.finding import PAIRS, POSITION
from autodist_core.capture.batch_axis.places import OTHER, UNKNOWN_STRIDE
from autodist_core.capture.batch_axis.slice_bounds import ENTIRE, Size, bound_of, cut_out
from autodist_core.capture.batch_axis.state import (
    ALIKE,
    DISTINCT,
    LARGEST,
    MIXED,
    NO_CLAIM,
    ROWS,
    SAME,
    SIZES,
    SMALLEST,
    SUM,
    UNKNOWN,
    State,
    rows,
)

_EXTREMES = {"Max": LARGEST, "Min": SMALLEST}
_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def part(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a slice with a begin and a size for each axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.slice(x, [0, 1], [-1, 2]))
    'rows along axis 0'
    """
    state = states[0]
    if state.kind == SIZES:
        return _of_sizes(operation, state, value_of(operation.inputs[1]), None)
    if state.kind != ROWS:
        return state
    for axis in state.axes:
        begin, size = (bound_of(flow, tensor, axis) for tensor in operation.inputs[1:3])
        if begin == 0 and size == -1:
            continue
        end = size if size != -1 else ENTIRE
        if isinstance(begin, Size) and isinstance(size, Size):
            end = begin.plus(size)
        cut = cut_out(state, begin, end) if begin == 0 or isinstance(begin, Size) else None
        if cut is None:
            flow.couple(operation, POSITION, operation)
            return NO_CLAIM
        state = cut
    return state


def _of_sizes(operation: Any, state: State, begin: Any, shrinks: Any) -> State:
    """Return the state of a part of a shape."""
    if begin is None or len(begin) != 1:
        return NO_CLAIM
    place, first = state.axes[0], int(begin[0])
    length = operation.inputs[0].shape[0]
    if first < 0:
        if length is None:
            return NO_CLAIM
        first += length
    if shrinks:
        return State(SUM, degree=1, outer=state.outer, origin=state.origin) if first == place else SAME
    count = operation.outputs[0].shape[0] if operation.outputs[0].shape.rank else None
    if place < first or (count is not None and place >= first + count):
        return SAME
    return state.at(place - first)


def strided(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a slice with a begin, an end and a step for each axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: x[:, 0])
    'rows along axis 0'
    >>> shown(lambda x: x[:2])
    'unknown; StridedSlice takes examples by their place in the batch'
    """
    state = states[0]
    if state.kind not in (ROWS, SIZES):
        return state
    begin, end, step = (value_of(tensor) for tensor in operation.inputs[1:4])
    masks = {name: operation.get_attr(f"{name}_mask") for name in _MASKS}
    if state.kind == SIZES:
        start = begin if begin is None or not masks["begin"] & 1 else np.zeros_like(begin)
        stepping = step is not None and step[0] < 0
        return NO_CLAIM if stepping else _of_sizes(operation, state, start, masks["shrink_axis"] & 1)
    rank, entries = operation.inputs[0].shape.rank, operation.inputs[1].shape[0]
    if rank is None or entries is None:
        return NO_CLAIM
    new = sum(bool(masks["new_axis"] >> at & 1) for at in range(entries))
    hidden = rank - (entries - new - bool(masks["ellipsis"]))
    source, target, placed = 0, 0, {}
    for at in range(entries):
        bit = 1 << at
        if masks["ellipsis"] & bit:
            placed.update({source + more: target + more for more in range(hidden)})
            source, target = source + hidden, target + hidden
        elif masks["new_axis"] & bit:
            target += 1
        else:
            if source in state.axes and not _is_all(masks, at, begin, end, step):
                one_entry = masks["shrink_axis"] & bit or step is None or step[at] != 1
                start = 0 if masks["begin"] & bit else bound_of(flow, operation.inputs[1], at)
                stop = ENTIRE if masks["end"] & bit else bound_of(flow, operation.inputs[2], at)
                cut = None if one_entry else cut_out(state, start, stop)
                if cut is None:
                    flow.couple(operation, POSITION, operation)
                    return NO_CLAIM
                state = cut
            if not masks["shrink_axis"] & bit:
                placed[source] = target
                target += 1
            source += 1
    placed.update({axis: target + axis - source for axis in range(source, rank)})
    return state.at(*(placed[axis] for axis in state.axes)) if all(axis in placed for axis in state.axes) else NO_CLAIM


def _is_all(masks: dict[str, int], at: int, begin: Any, end: Any, step: Any) -> bool:
    bit = 1 << at
    if masks["shrink_axis"] & bit or step is None or step[at] != 1:
        return False
    starts = masks["begin"] & bit or (begin is not None and begin[at] == 0)
    ends = masks["end"] & bit or (end is not None and end[at] >= 2**31 - 1)
    return bool(starts and ends)


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
            return NO_CLAIM if table.kind != ALIKE or index.kind != ALIKE else SAME
        axis = axes[0]
    rank = operation.inputs[1].shape.rank
    if table.kind == SIZES:
        places = value_of(operation.inputs[1])
        if places is None or np.ndim(places) > 1:
            return NO_CLAIM
        found = [at for at, place in enumerate(np.atleast_1d(places)) if place == table.axis]
        size = State(SUM, degree=1, outer=table.outer, origin=table.origin)
        return SAME if not found else table.at(found[0]) if np.ndim(places) else size
    if index.kind == DISTINCT:
        return index if table.kind == ALIKE else NO_CLAIM
    if rank is None or any(len(state.axes) > 1 for state in (table, index)):
        return NO_CLAIM
    if (index.kind == ROWS and table.kind in (DISTINCT, ALIKE, UNKNOWN)) or (index.kind == ROWS and table.couples):
        if table.couples:
            flow.couple_values([table], operation)
        found_axis = index.axis if index.axis < batch else axis + index.axis - batch
        # Constants by position are a function of positions. Distinct entries by position are each example's own.
        stride = OTHER if index.stride and table.kind == ALIKE else 0
        return index._replace(axes=(found_axis,), stride=stride, degree=0)
    if table.kind == ROWS and index.kind == ROWS:
        if table.axis < batch and table.axis == index.axis:
            return table
        if table.axis != axis:
            flow.couple(operation, PAIRS, operation)
            return NO_CLAIM
        if not _is_own(index, table):
            flow.couple(operation, POSITION, operation)
            return NO_CLAIM
        return _picked(operation, table, index)._replace(
            axes=(axis + index.axis,), outer=index.outer, inner=index.inner
        )
    if table.kind == ROWS and table.axis == axis:
        if index.kind == ALIKE or index.couples:
            flow.couple(operation, POSITION, operation)
        return NO_CLAIM
    if table.kind == ROWS:
        return table.at(table.axis if table.axis < axis else table.axis + rank - batch - 1)
    return arithmetic.element_wise(flow, operation, [table, index])


def _is_own(index: State, table: State) -> bool:
    """Whether positions of examples are those of their own entries in a table."""
    if index.stride == UNKNOWN_STRIDE:
        return table.outer == 1 and table.inner is None
    return index.stride > 0 and (index.stride == table.each or (table.outer == 1 and table.inner is None))


def _picked(operation: Any, table: State, index: State) -> State:
    return table._replace(subset=True, origin=table.origin or operation) if index.subset else table


def gather_nd(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are taken by index vectors.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.gather_nd(tf.ones([5, 4]), x), None, 2, dtype="int32")
    'rows along axis 0'
    """
    table, index = (SAME, states[1]) if operation.type == "ResourceGatherNd" else states[:2]
    depth = operation.inputs[1].shape[-1] if operation.inputs[1].shape.rank else None
    if index.kind == ROWS and table.kind == ROWS:
        if not _is_own(index, table) and (depth is None or any(axis < depth for axis in table.axes)):
            flow.couple(operation, POSITION, operation)
            return NO_CLAIM
        return _picked(operation, table, index)._replace(axes=index.axes, outer=index.outer, inner=index.inner)
    if index.kind == ROWS:
        flow.couple_values([table], operation)
        return index._replace(stride=OTHER if index.stride else 0)
    if table.kind == ROWS:
        if index.kind == ALIKE and depth is not None and any(axis < depth for axis in table.axes):
            flow.couple(operation, POSITION, operation)
        return NO_CLAIM
    return arithmetic.element_wise(flow, operation, [table, index])


def scatter(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a new tensor to which entries are added by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.scatter_nd(x, x[:, 0], [4]), None, 1, dtype="int32")
    'a sum over the examples'
    """
    index, values, asked = states
    if index.kind == ALIKE and values.kind == ALIKE:
        return SAME
    if index.stride == 1:
        return rows(asked.axes[0] if asked.kind == SIZES else 0, inner=None if index.subset else 1)
    if asked.kind == SIZES:
        flow.couple(operation, PAIRS if ROWS in (index.kind, values.kind) else POSITION, operation)
        return NO_CLAIM
    if ROWS in (index.kind, values.kind):
        return State(SUM, degree=1, origin=operation)
    return arithmetic.element_wise(flow, operation, states[:2])


def scatter_on(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor to which entries are written by index.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.tensor_scatter_nd_update(tf.zeros([4, 3]), [[0]], tf.reduce_sum(x, 0)[tf.newaxis]))
    'mixed'
    """
    table, index, values = states
    if table.kind == ROWS:
        depth = operation.inputs[1].shape[-1] if operation.inputs[1].shape.rank else None
        inside = depth is not None and all(axis >= depth for axis in table.axes)
        if not inside and not _is_own(index, table):
            flow.couple(operation, POSITION if index.kind != ROWS else PAIRS, operation)
            return NO_CLAIM
        flow.couple_values([values], operation)
        return table
    if table.kind == ALIKE and ROWS in (index.kind, values.kind):
        if "Add" in operation.type or "Sub" in operation.type:
            zeros = value_of(operation.inputs[0])
            summed = zeros is not None and not np.any(zeros) and index.stride == 0
            return State(SUM, degree=1 + values.degree, origin=operation) if summed else State(MIXED, origin=operation)
        return State(_EXTREMES.get(operation.type[-3:], MIXED), origin=operation)
    return arithmetic.element_wise(flow, operation, states)


def segments(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries that are reduced by segment.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0], tf.int32), 4))
    'a sum over the examples'
    """
    values, index = states[0], states[1]
    if ROWS not in (values.kind, index.kind):
        return arithmetic.element_wise(flow, operation, states[:2])
    if index.stride == 1:
        return rows(0, inner=None if index.subset else 1)
    if values.kind == ROWS and index.kind == ALIKE and values.axis != 0:
        return values
    if "Sum" in operation.type and not index.stride:
        return State(SUM, degree=1 + values.degree, origin=operation)
    kind = next((kind for name, kind in _EXTREMES.items() if name in operation.type), MIXED)
    return State(kind, origin=operation)


def counts(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the counts of each number, over all entries or in each row of a matrix.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.math.bincount(x, minlength=4, maxlength=4), None, dtype="int32")
    'a sum over the examples'
    """
    if states[0].kind != ROWS:
        return arithmetic.element_wise(flow, operation, states[:1])
    if operation.type == "DenseBincount" and operation.inputs[0].shape.rank == 2 and states[0].axes == (0,):
        return states[0]
    return State(SUM, degree=1, origin=operation)


RULES: dict[str, Any] = {
    "Slice": part, "StridedSlice": strided, "GatherV2": gather, "Gather": gather, "ResourceGather": gather,
    "GatherNd": gather_nd, "ResourceGatherNd": gather_nd, "ScatterNd": scatter, "Bincount": counts,
    "DenseBincount": counts,
    **dict.fromkeys(
        ("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin"),
        scatter_on,
    ),
    **dict.fromkeys(
        ("SegmentSum", "SegmentSumV2", "SegmentMean", "SegmentMax", "SegmentMaxV2", "SegmentMin", "SegmentMinV2",
         "UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"), segments,
    ),
}  # fmt: skip
