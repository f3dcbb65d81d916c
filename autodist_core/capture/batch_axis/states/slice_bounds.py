"""The bounds of a slice along the batch axis: a slice of whole copies of the batch takes a concatenation apart.

In: the state of rows, and two bounds. Out: the state of the slice. For two views of each of n examples, one view behind
the other along the batch axis::

    both[:n]       the first view of each example
    both[n:]       the second view of each example
    both[:n // 2]  None: it takes examples by their place in the batch
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Kind, State

ENTIRE = 2**31 - 1
"""An end behind all entries."""


class Size(NamedTuple):
    """A bound that is a multiple of the number of examples; None if it is not known which one.

    >>> Size(1).plus(Size(2))
    Size(times=3)
    """

    times: int | None

    def plus(self, other: Size) -> Size:
        """Return the sum of two bounds. The class has an example."""
        return Size(None if self.times is None or other.times is None else self.times + other.times)


Bound = int | Size | None


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
    if state.kind == Kind.SIZES and axis in state.axes:
        return Size(state.outer)
    if tensor.op.type == "Pack":
        part = tensor.op.inputs[axis]
        value, state = value_of(part), flow.state_of(part)
        if value is not None:
            return int(value)
        if state.is_size and state.degree == 1:
            return Size(state.outer)
    return None


def counts_examples(flow: Any, tensor: Any, axes: Iterable[int]) -> bool:
    """Whether the bounds that a tensor has for some axes depend on how many examples the batch has.

    The module's docstring has such bounds.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.slice(x, [0, 0], [tf.shape(x)[0], 2]), x[: tf.shape(x)[0] // 2]))
    'rows along axis 0, unknown; StridedSlice takes examples by their place in the batch'
    """
    state = flow.state_of(tensor)
    if value_of(tensor) is not None or state.kind in (Kind.ALIKE, Kind.UNKNOWN, Kind.ONE, Kind.ROWS):
        return False
    if state.kind == Kind.SIZES:
        return any(axis in state.axes for axis in axes)
    if tensor.op.type == "Pack":
        parts = [flow.state_of(tensor.op.inputs[axis]) for axis in axes]
        return any(part.is_size or part.kind == Kind.NUMBER for part in parts)
    return True


def cut_out(state: State, first: Bound, end: Bound) -> State | None:
    """Return the state of the rows between two bounds; None if they do not bound whole copies of the batch.

    Nothing is claimed of rows if it is not known how many entries each example has.

    >>> from autodist_core.capture.batch_axis.states.state import rows
    >>> both = rows(0, outer=2)
    >>> cut_out(both, Size(1), ENTIRE).outer, cut_out(both, 0, Size(1)).outer, cut_out(both, 0, 3)
    (1, 1, None)
    """
    if first == 0 and isinstance(end, int) and end >= ENTIRE:
        return state
    sizes = [bound for bound in (first, end) if isinstance(bound, Size)]
    if not sizes or not (isinstance(first, Size) or first == 0):
        return None
    if not (isinstance(end, Size) or (isinstance(end, int) and end >= ENTIRE)):
        return None
    if state.each is None or state.inner is None or any(size.times is None for size in sizes):
        return NO_CLAIM
    places = [_place(bound, state.each) for bound in (first, end)]
    if any(place % state.inner for place in places) or not 0 <= places[0] < places[1] <= state.each:
        return None
    return state._replace(outer=(places[1] - places[0]) // state.inner)


def _place(bound: Bound, each: int) -> int:
    if not isinstance(bound, Size):
        return each if bound else 0
    assert bound.times is not None
    return bound.times + each if bound.times < 0 else bound.times
