"""What the static analysis knows of one tensor: how its values depend on the examples of the batch."""

from __future__ import annotations

from typing import Any, NamedTuple

ALIKE = "alike"
"""The same on every replica: constants, variables, the size of other axes."""
ROWS = "rows"
"""Each entry belongs to one example; `axes` say along which axes the examples stand."""
ONE = "one"
"""All of it belongs to one example: an element of a loop over the batch."""
SUM = "sum"
"""Linear in a sum over the examples. Degree 1 is a sum, degree 0 a mean; without an origin it is the batch size."""
LARGEST = "max"
"""The largest value over the examples."""
SMALLEST = "min"
"""The smallest value over the examples."""
MIXED = "mixed"
"""Another value of the whole batch."""
SIZES = "sizes"
"""A shape; the batch size stands at the positions `axes`."""
DISTINCT = "distinct"
"""Each of several entries once; examples refer to them by position."""
VARIABLE = "variable"
"""The handle of a variable."""
UNKNOWN = "unknown"
"""Nothing is claimed: what a gradient made, and what follows from something that is reported already."""

REDUCED = (SUM, LARGEST, SMALLEST, MIXED)


class State(NamedTuple):
    """How one tensor depends on the examples of the batch.

    >>> rows(1)
    State(kind='rows', axes=(1,), outer=1, inner=1, degree=0, origin=None, place=False, subset=False, variable=None)
    """

    kind: str
    axes: tuple[int, ...] = ()
    outer: int | None = 1
    """Of rows: how many entries of the axis stand before each run of examples; None where that is not known."""
    inner: int | None = 1
    """Of rows: how many entries of the axis one example has; None where that is not known."""
    degree: int = 0
    """By which power of the batch size it grows."""
    origin: Any = None
    """The operation that made one value of several examples."""
    place: bool = False
    """Whether it is made of the positions of the examples."""
    subset: bool = False
    """Whether some examples may be missing, others occur more than once."""
    variable: Any = None
    """What a handle is the handle of."""

    @property
    def axis(self) -> int:
        """The first axis along which the examples stand."""
        return self.axes[0]

    @property
    def is_size(self) -> bool:
        """Whether this is a power of the batch size, times a constant."""
        return self.kind == SUM and self.origin is None

    @property
    def couples(self) -> bool:
        """Whether this is one value of several examples, and more than their number."""
        return self.kind in REDUCED and self.origin is not None

    def at(self, *axes: int) -> State:
        """The same rows along other axes."""
        return self._replace(axes=axes)


SAME = State(ALIKE)
NO_CLAIM = State(UNKNOWN)
SIZE = State(SUM, degree=1)


def rows(axis: int, **more: Any) -> State:
    """Examples along one axis."""
    return State(ROWS, (axis,), **more)


def mean_over_examples(origin: Any) -> State:
    """A mean over the examples, which the replicas' parts of the batch weigh right."""
    return State(SUM, degree=0, origin=origin)
