"""States of one value of the whole batch: sums, extremes, sizes and others.

In: nothing; rules make states of states. Out: a frozen value. For a batch `x` of n examples::

    Mean(x, axis 0)      Sum(0, Mean)       a mean over the examples
    Max(x, axis 0)       Largest(Max)       the largest value over the examples
    n * 4                Size(1, 4)         four times the number of examples
    n // 2               Number(FloorDiv)   neither a multiple nor a power of the number of examples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from autodist_core.capture.batch_axis.states.state import Sizes, State


class Reduced(State):
    """One value of the whole batch.

    >>> isinstance(Size(), Reduced), isinstance(Largest(), Reduced), isinstance(State(), Reduced)
    (True, True, False)
    """


@dataclass(frozen=True)
class Linear(Reduced):
    """Linear in a sum over the examples. Degree 1 is a sum, degree 0 a mean.

    >>> Linear().degree
    1
    """

    degree: int = 1


@dataclass(frozen=True)
class Sum(Linear):
    """A sum or a mean over the examples, or one of these times a power of the batch size.

    >>> Sum(0, "Mean").couples
    True
    """

    origin: Any = None
    couples: ClassVar[bool] = True


@dataclass(frozen=True)
class Size(Linear):
    """The number of examples, or a power of it, times a constant.

    >>> Size(times=2).plus(Size()).times
    3
    """

    times: int | None = 1
    """The constant; None if it is not known."""

    def plus(self, other: Size) -> Size:
        """Return the sum of two multiples of the number of examples. The class has an example."""
        return Size(times=None if self.times is None or other.times is None else self.times + other.times)


@dataclass(frozen=True)
class Nonlinear(Reduced):
    """One value of the whole batch that is neither a sum nor a mean: the weighted mean of the replicas' is not it.

    >>> isinstance(Mixed(), Nonlinear), isinstance(Sum(), Nonlinear)
    (True, False)
    """

    origin: Any = None
    couples: ClassVar[bool] = True


class Extreme(Nonlinear):
    """The largest or the smallest value over the examples.

    >>> Largest("Max").opposite()
    Smallest(origin='Max')
    """

    def opposite(self) -> Extreme:
        """Return the state of the value with the sign changed. The class has an example."""
        return Smallest(self.origin) if isinstance(self, Largest) else Largest(self.origin)


class Largest(Extreme):
    """The largest value over the examples.

    >>> Largest() == Smallest()
    False
    """


class Smallest(Extreme):
    """The smallest value over the examples.

    >>> Smallest() == Smallest()
    True
    """


class Number(Nonlinear):
    """A value that is computed from the number of examples alone, and is no multiple or power of it, as its half is.

    >>> Number("FloorDiv").couples
    True
    """


class Mixed(Nonlinear):
    """One value of the whole batch that is none of these.

    >>> Mixed("Sqrt").couples
    True
    """


EXTREMES: Mapping[str, type[Extreme]] = {"Max": Largest, "Any": Largest, "Min": Smallest, "All": Smallest}
"""The states of reductions over the examples, by type: true is the largest truth value."""


def size_in(shape: Sizes) -> Linear:
    """Return the state of the batch size in a shape. A number of chosen examples is a sum over the examples.

    >>> size_in(Sizes(0, times=2))
    Size(degree=1, times=2)
    """
    return Size(times=shape.times) if shape.origin is None else Sum(1, shape.origin)
