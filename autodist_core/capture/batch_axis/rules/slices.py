"""Rules for slices.

In: the states of a tensor and of the bounds. Out: the state of the slice. For `x` with the examples along its first
axis, and a constant table::

    StridedSlice(x)[:, 0]        rows along axis 0
    StridedSlice(x)[0]           a coupling: it takes examples by their position in the batch
    StridedSlice(table)[:n]      a coupling: each example gets an entry by its position
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.rules import arithmetic
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import POSITION
from autodist_core.capture.batch_axis.states.reduced import Size, size_in
from autodist_core.capture.batch_axis.states.slice_bounds import ENTIRE, bound_of, counts_examples, cut_out
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, One, Rows, Sizes, State

_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def part(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a slice with a begin and a size for each axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.slice(x, [0, 1], [-1, 2]))
    'rows along axis 0'
    """
    state = states[0]
    if isinstance(state, Sizes):
        return _of_sizes(operation, state, value_of(operation.inputs[1]), shrinks=False)
    axes = state.axes if isinstance(state, Rows) else ()
    others = [axis for axis in range(operation.inputs[0].shape.rank or 0) if axis not in axes]
    if any(counts_examples(flow, bound, others) for bound in operation.inputs[1:3]):
        return flow.couple(operation, POSITION)
    if not isinstance(state, Rows):
        return _by_index(flow, operation, states)
    for axis in axes:
        begin, size = (bound_of(flow, tensor, axis) for tensor in operation.inputs[1:3])
        end = size if size != -1 else ENTIRE
        if isinstance(begin, Size) and isinstance(size, Size):
            end = begin.plus(size)
        state = cut_out(state, begin, end) or flow.couple(operation, POSITION)
        if not isinstance(state, Rows):
            return state
    return state


def _by_index(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a part of a tensor without rows, with bounds that may be those of one example."""
    own = next((state for state in states[1:] if isinstance(state, One)), None)
    if states[0] == SAME and own is not None:
        return own.looked_up()
    if any(state.couples for state in states[1:]):
        return arithmetic.element_wise(flow, operation, states)
    return states[0]


def _of_sizes(operation: Any, state: Sizes, begin: Any, shrinks: bool) -> State:
    """Return the state of a part of a shape."""
    length = operation.inputs[0].shape[0]
    if begin is None or len(begin) != 1 or (begin[0] < 0 and length is None):
        return NO_CLAIM
    first = int(begin[0]) + (length if begin[0] < 0 else 0)
    if shrinks:
        return size_in(state) if first == state.place else SAME
    return part_of_sizes(state, first, operation.outputs[0].shape[0] if operation.outputs[0].shape.rank else None)


def part_of_sizes(state: Sizes, first: int, count: int | None) -> State:
    """Return the state of so many sizes of a shape from the first one on, or of all behind it.

    >>> part_of_sizes(Sizes(2), 1, 2).place, part_of_sizes(Sizes(2), 0, 2)
    (1, Alike())
    """
    inside = first <= state.place and (count is None or state.place < first + count)
    return state.at(state.place - first) if inside else SAME


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
    state, rank, count = states[0], operation.inputs[0].shape.rank, operation.inputs[1].shape[0]
    masks = {name: operation.get_attr(f"{name}_mask") for name in _MASKS}
    if isinstance(state, Sizes):
        begin, _, step = (value_of(tensor) for tensor in operation.inputs[1:4])
        begin = begin if begin is None or not masks["begin"] & 1 else np.zeros_like(begin)
        skips = step is None or step[0] != 1
        return NO_CLAIM if skips else _of_sizes(operation, state, begin, bool(masks["shrink_axis"] & 1))
    bounded, placed = _axes(masks, rank or 0, count or 0)
    if not isinstance(state, Rows):
        cuts = any(_cuts_by_size(flow, operation, masks, at) for at in bounded)
        return flow.couple(operation, POSITION) if cuts else _by_index(flow, operation, states)
    if rank is None or count is None:
        return NO_CLAIM
    for at, axis in bounded.items():
        if axis in state.axes:
            state = _along_examples(flow, operation, masks, at, state)
            if not isinstance(state, Rows):
                return state
        elif _cuts_by_size(flow, operation, masks, at):
            return flow.couple(operation, POSITION)
    return state.at(*(placed[axis] for axis in state.axes))


def _axes(masks: Mapping[str, int], rank: int, count: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the axis that each pair of bounds is for, by its position, and the place of each axis in the result."""
    hidden = rank - sum(not (masks["ellipsis"] | masks["new_axis"]) >> at & 1 for at in range(count))
    # How many axes of the tensor, and how many of the result, an entry of each form stands for.
    forms = {"ellipsis": (hidden, hidden), "new_axis": (0, 1), "shrink_axis": (1, 0), "bounds": (1, 1)}
    bounded, placed, source, target = {}, {}, 0, 0
    for at in range(count):
        form = next((name for name in ("ellipsis", "new_axis", "shrink_axis") if masks[name] >> at & 1), "bounds")
        read, made = forms[form]
        if form in ("shrink_axis", "bounds"):
            bounded[at] = source
        if read == made:
            placed.update({source + more: target + more for more in range(read)})
        source, target = source + read, target + made
    placed.update({axis: target + axis - source for axis in range(source, rank)})
    return bounded, placed


def _along_examples(flow: Any, operation: Any, masks: Mapping[str, int], at: int, state: Rows) -> State:
    """Return the state of what one pair of bounds takes along the axis of the examples."""
    begin, end, step = operation.inputs[1], operation.inputs[2], value_of(operation.inputs[3])
    shrinks = masks["shrink_axis"] >> at & 1
    if shrinks and _is_of_round(flow, begin, at, state):
        return state.entry()
    if shrinks or step is None or step[at] != 1:
        return flow.couple(operation, POSITION)
    first = 0 if masks["begin"] >> at & 1 else bound_of(flow, begin, at)
    last = ENTIRE if masks["end"] >> at & 1 else bound_of(flow, end, at)
    return cut_out(state, first, last) or flow.couple(operation, POSITION)


def _is_of_round(flow: Any, begin: Any, at: int, state: Rows) -> bool:
    """Whether a slice takes one entry, in a loop with a round for each example: that of the round's own example."""
    if flow.rounds is None or len(state.axes) > 1 or begin.op.type != "Pack":
        return False
    return bool(flow.rounds.own(flow.state_of(begin.op.inputs[at]), state))


def _cuts_by_size(flow: Any, operation: Any, masks: Mapping[str, int], at: int) -> bool:
    """Whether one of a pair of bounds depends on how many examples the batch has."""
    _, begin, end, _ = operation.inputs
    bounds = (begin, masks["begin"]), (end, masks["end"] | masks["shrink_axis"])
    return any(not mask >> at & 1 and counts_examples(flow, bound, [at]) for bound, mask in bounds)


RULES: dict[str, Any] = {"Slice": part, "StridedSlice": strided}
