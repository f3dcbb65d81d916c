"""The bounds of a slice along the batch axis: a slice of whole copies of the batch takes a concatenation apart.

In: the state of rows, and two bounds. Out: the state of the slice. For two views of each of n examples, one view behind
the other along the batch axis::

    both[:n]       the first view of each example
    both[n:]       the second view of each example
    both[:n // 2]  None: it takes examples by their place in the batch
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.reduced import Number, Size
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Alike, OfExamples, Rows, Sizes, State, Unknown

ENTIRE = 2**31 - 1
"""An end behind all entries."""
Bound = int | Size | None
"""A constant, or a multiple of the number of examples; None for another one."""


def bound_of(flow: Any, tensor: Any, axis: int) -> Bound:
    """Return the bound that a tensor has for one axis: a constant or a size; None for another one.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.concat([x, x], axis=0)[tf.shape(x)[0] :])
    'rows along axis 0'
    """
    value = value_of(tensor)
    if value is not None:
        return int(value[axis])
    state = flow.state_of(tensor)
    if isinstance(state, Sizes) and axis == state.place:
        return Size(times=state.times)
    if tensor.op.type == "Pack":
        part = tensor.op.inputs[axis]
        value, state = value_of(part), flow.state_of(part)
        if value is not None:
            return int(value)
        if isinstance(state, Size) and state.degree == 1:
            return state
    return None


def counts_examples(flow: Any, tensor: Any, axes: Iterable[int]) -> bool:
    """Whether the bounds that a tensor has for some axes depend on how many examples the batch has.

    The module's docstring has such bounds.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.slice(x, [0, 0], [tf.shape(x)[0], 2]), x[: tf.shape(x)[0] // 2]))
    'rows along axis 0, unknown; StridedSlice takes examples by their place in the batch'
    """
    state = flow.state_of(tensor)
    if value_of(tensor) is not None or isinstance(state, (Alike, Unknown, OfExamples)):
        return False
    if isinstance(state, Sizes):
        return state.place in axes
    if tensor.op.type == "Pack":
        parts = [flow.state_of(tensor.op.inputs[axis]) for axis in axes]
        return any(isinstance(part, (Size, Number)) for part in parts)
    return True


def cut_out(state: Rows, first: Bound, end: Bound) -> State | None:
    """Return the state of the rows between two bounds; None if they do not bound whole copies of the batch.

    Nothing is claimed of rows if it is not known how many entries each example has.

    >>> both = Rows(outer=2)
    >>> cut_out(both, Size(), ENTIRE).outer, cut_out(both, 0, Size()).outer, cut_out(both, 0, 3)
    (1, 1, None)
    """
    to_end = isinstance(end, int) and end >= ENTIRE
    if first == 0 and to_end:
        return state
    begin, stop = Size(times=0) if first == 0 else first, Size(times=state.each) if to_end else end
    if not isinstance(begin, Size) or not isinstance(stop, Size):
        return None
    if state.each is None or state.inner is None or begin.times is None or stop.times is None:
        return NO_CLAIM
    places = [times + state.each if times < 0 else times for times in (begin.times, stop.times)]
    if any(place % state.inner for place in places) or not 0 <= places[0] < places[1] <= state.each:
        return None
    return replace(state, outer=(places[1] - places[0]) // state.inner)

