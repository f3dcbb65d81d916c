"""State: what the static analysis knows of one tensor, that is, how its values depend on the examples of the batch.

In: nothing; rules make states of states. Out: a frozen value. For a batch `x` of 32 examples with 20 features each::

    x                     rows(0)                   each entry belongs to one example, found along axis 0
    Mean(x, axis 0)       sum, degree 0             a mean over the examples
    Sum(x, axis 0)        sum, degree 1             a sum over the examples
    Shape(x)              sizes, axes (0,)          the batch size is at position 0
    a kernel              alike                     equal on all replicas
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Kind:
    """How a tensor depends on the examples of the batch, in one word.

    >>> Kind.ROWS, Kind.SUM
    ('rows', 'sum')
    """

    ALIKE = "alike"
    """Equal on all replicas: constants, variables, the sizes of other axes."""
    ROWS = "rows"
    """Each entry belongs to one example; `axes` are the axes along which the examples are."""
    ONE = "one"
    """The whole tensor belongs to one example, as an element in a loop over the batch does."""
    SUM = "sum"
    """Linear in a sum over the examples. Degree 1 is a sum, degree 0 a mean; without an origin it is the batch size."""
    LARGEST = "max"
    """The largest value over the examples."""
    SMALLEST = "min"
    """The smallest value over the examples."""
    MIXED = "mixed"
    """One value of the whole batch that is none of these."""
    NUMBER = "number"
    """A value that is computed from the number of examples alone, and is no multiple or power of it, as its half is."""
    SIZES = "sizes"
    """A shape; the batch size is at the positions `axes`."""
    DISTINCT = "distinct"
    """Distinct entries of a tensor, each once; examples refer to them by position."""
    RAGGED = "ragged"
    """A part of a ragged or sparse tensor: its entries, or which of them are of which example."""
    VARIABLE = "variable"
    """The handle of a variable."""
    UNKNOWN = "unknown"
    """Nothing is claimed: values of gradients, and values that follow from an operation that is noted already."""


REDUCED = (Kind.SUM, Kind.LARGEST, Kind.SMALLEST, Kind.MIXED, Kind.NUMBER)


class State(NamedTuple):
    """How one tensor depends on the examples of the batch.

    >>> rows(1)[:4]
    ('rows', (1,), 1, 1)
    """

    kind: str
    axes: tuple[int, ...] = ()
    outer: int | None = 1
    """Of rows: how many times the axis has the whole batch, one after the other; None if that is not known.
    Of a size: how many times it is the number of examples."""
    inner: int | None = 1
    """Of rows: how many consecutive entries of the axis one example has; None if that is not known."""
    degree: int = 0
    """The power of the batch size with which the values grow."""
    origin: Any = None
    """The operation that made one value of several examples."""
    stride: int = 0
    """Of rows: whether the values are positions of examples. 0: they are not. A positive number: each value is the
    position of its example times this number, or up to the next multiple of it. -1: any other function of positions."""
    subset: Any = None
    """Of rows and shapes: by what condition some examples were chosen, so that others are missing; None for all."""
    free: bool = False
    """Of rows: whether the entries are of no example, as zeros and random numbers in the shape of a batch."""
    variable: Any = None
    """The variable of a handle."""

    @property
    def axis(self) -> int:
        """The first axis along which the examples are."""
        return self.axes[0]

    @property
    def is_size(self) -> bool:
        """Whether the value is a power of the batch size, times a constant."""
        return self.kind == Kind.SUM and self.origin is None

    @property
    def couples(self) -> bool:
        """Whether the value belongs to the whole batch, and is no power of the batch size."""
        return self.kind in REDUCED and self.origin is not None

    @property
    def each(self) -> int | None:
        """Of rows: how many entries of the axis there are for each example; None if that is not known."""
        return None if self.outer is None or self.inner is None else self.outer * self.inner

    def at(self, *axes: int) -> State:
        """Return the same rows along other axes.

        >>> rows(0).at(2).axes
        (2,)
        """
        return self._replace(axes=axes)


SAME = State(Kind.ALIKE)
NO_CLAIM = State(Kind.UNKNOWN)
SIZE = State(Kind.SUM, degree=1)


def rows(axis: int, **more: Any) -> State:
    """Return the state of a tensor with the examples along one axis.

    >>> rows(1).axis
    1
    """
    return State(Kind.ROWS, (axis,), **more)


def mean_over_examples(origin: Any) -> State:
    """Return the state of a mean over the examples: the replicas' means, weighted by their shares, give it.

    >>> mean_over_examples(None).degree
    0
    """
    return State(Kind.SUM, degree=0, origin=origin)
