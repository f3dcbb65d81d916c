"""Rules for slices.

In: the states of a tensor and of the bounds. Out: the state of the slice. For `x` with the examples along its first
axis, and a constant table::

    StridedSlice(x)[:, 0]        rows along axis 0
    StridedSlice(x)[0]           a coupling: it takes examples by their position in the batch
    StridedSlice(table)[:n]      a coupling: each example gets an entry by its position
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.rules import arithmetic
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import POSITION
from autodist_core.capture.batch_axis.states.places import OTHER
from autodist_core.capture.batch_axis.states.slice_bounds import ENTIRE, Size, bound_of, counts_examples, cut_out
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Kind, State

_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def part(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a slice with a begin and a size for each axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.slice(x, [0, 1], [-1, 2]))
    'rows along axis 0'
    """
    state = states[0]
    if state.kind == Kind.SIZES:
        return _of_sizes(operation, state, value_of(operation.inputs[1]), None)
    others = [axis for axis in range(operation.inputs[0].shape.rank or 0) if axis not in state.axes]
    if any(counts_examples(flow, bound, others) for bound in operation.inputs[1:3]):
        return flow.couple(operation, POSITION)
    if state.kind != Kind.ROWS:
        return _by_index(flow, operation, states)
    for axis in state.axes:
        begin, size = (bound_of(flow, tensor, axis) for tensor in operation.inputs[1:3])
        end = size if size != -1 else ENTIRE
        if isinstance(begin, Size) and isinstance(size, Size):
            end = begin.plus(size)
        state = cut_out(state, begin, end) or flow.couple(operation, POSITION)
        if state is NO_CLAIM:
            return NO_CLAIM
    return state


def _by_index(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a part of a tensor without rows, with bounds that may be those of one example."""
    own = next((state for state in states[1:] if state.kind == Kind.ONE), None)
    if states[0].kind == Kind.ALIKE and own is not None:
        return State(Kind.ONE, stride=OTHER if own.stride else 0, origin=own.origin)
    if any(state.couples for state in states[1:]):
        return arithmetic.element_wise(flow, operation, states)
    return states[0]


def _of_sizes(operation: Any, state: State, begin: Any, shrinks: Any) -> State:
    """Return the state of a part of a shape."""
    if begin is None or len(begin) != 1:
        return NO_CLAIM
    first = int(begin[0])
    length = operation.inputs[0].shape[0]
    if first < 0:
        if length is None:
            return NO_CLAIM
        first += length
    if shrinks:
        return State(Kind.SUM, degree=1, outer=state.outer, origin=state.origin) if first == state.axis else SAME
    return part_of_sizes(state, first, operation.outputs[0].shape[0] if operation.outputs[0].shape.rank else None)


def part_of_sizes(state: State, first: int, count: int | None) -> State:
    """Return the state of so many sizes of a shape from the first one on, or of all behind it.

    >>> shape = State(Kind.SIZES, (2,))
    >>> part_of_sizes(shape, 1, 2).axes, part_of_sizes(shape, 0, 2).kind
    ((1,), 'alike')
    """
    inside = first <= state.axis and (count is None or state.axis < first + count)
    return state.at(state.axis - first) if inside else SAME


def strided(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a slice with a begin, an end and a step for each axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: x[:, 0])
    'rows along axis 0'
    >>> shown(lambda x: x[:2])
    'unknown; StridedSlice takes examples by their place in the batch'
    >>> shown(lambda x: tf.map_fn(lambda at: x[at], tf.range(tf.shape(x)[0]), fn_output_signature=tf.float32))
    'rows along axis 0'
    """
    state = states[0]
    begin, _, step = (value_of(tensor) for tensor in operation.inputs[1:4])
    masks = {name: operation.get_attr(f"{name}_mask") for name in _MASKS}
    if state.kind not in (Kind.ROWS, Kind.SIZES):
        if any(_cuts_by_size(flow, operation, masks, at) for at in range(operation.inputs[1].shape[0] or 0)):
            return flow.couple(operation, POSITION)
        return _by_index(flow, operation, states)
    if state.kind == Kind.SIZES:
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
            if source not in state.axes and _cuts_by_size(flow, operation, masks, at):
                return flow.couple(operation, POSITION)
            if source in state.axes:
                if masks["shrink_axis"] & bit and _is_of_round(flow, operation.inputs[1], at, state):
                    return State(Kind.ONE, stride=state.stride, origin=state.origin)
                one_entry = masks["shrink_axis"] & bit or step is None or step[at] != 1
                start = 0 if masks["begin"] & bit else bound_of(flow, operation.inputs[1], at)
                stop = ENTIRE if masks["end"] & bit else bound_of(flow, operation.inputs[2], at)
                state = (None if one_entry else cut_out(state, start, stop)) or flow.couple(operation, POSITION)
                if state is NO_CLAIM:
                    return NO_CLAIM
            if not masks["shrink_axis"] & bit:
                placed[source] = target
                target += 1
            source += 1
    placed.update({axis: target + axis - source for axis in range(source, rank)})
    return state.at(*(placed[axis] for axis in state.axes)) if all(axis in placed for axis in state.axes) else NO_CLAIM


def _is_of_round(flow: Any, begin: Any, at: int, state: State) -> bool:
    """Whether a slice takes one entry, in a loop with a round for each example: that of the round's own example."""
    if flow.rounds is None or len(state.axes) > 1 or begin.op.type != "Pack":
        return False
    return bool(flow.rounds.own(flow.state_of(begin.op.inputs[at]), state))


def _cuts_by_size(flow: Any, operation: Any, masks: dict[str, int], at: int) -> bool:
    """Whether a bound of a slice depends on how many examples the batch has."""
    bit = 1 << at
    if (masks["ellipsis"] | masks["new_axis"]) & bit:
        return False
    ends = masks["end"] | masks["shrink_axis"]
    return (not masks["begin"] & bit and counts_examples(flow, operation.inputs[1], [at])) or (
        not ends & bit and counts_examples(flow, operation.inputs[2], [at])
    )


RULES: dict[str, Any] = {"Slice": part, "StridedSlice": strided}
