"""State: what the static analysis knows of one tensor, that is, how its values depend on the examples of the batch.

In: nothing; rules make states of states. Out: a frozen value. There is one type for each kind of dependence, so that a
state has the fields of its own kind only, and there are families of types for what rules ask of several kinds::

    Alike                              equal on all replicas
    OfExamples   Rows, One             entries that belong to one example each
    Reduced                            one value of the whole batch (`reduced`)
      Linear     Sum, Size             a sum or a mean over the examples, and the number of examples
      Nonlinear  Largest, Smallest (each is an Extreme), Number, Mixed
    Sizes                              a shape that has the number of examples
    Distinct, Ragged, Handle           distinct entries, parts of ragged tensors, handles of variables
    Unknown                            nothing is claimed

For a batch `x` of 32 examples with 20 features each::

    x                     Rows((0,))        each entry belongs to one example, found along axis 0
    Mean(x, axis 0)       Sum(0, Mean)      a mean over the examples
    Sum(x, axis 0)        Sum(1, Sum)       a sum over the examples
    Shape(x)              Sizes(0)          the batch size is at position 0
    a kernel              Alike()           equal on all replicas
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from autodist_core.step.graph_item import Variable

OTHER = -1
"""The stride of another function of positions."""


@dataclass(frozen=True)
class State:
    """How one tensor depends on the examples of the batch. Types that can have them have these as fields.

    >>> Alike().degree, Distinct("Unique").origin
    (0, 'Unique')
    """

    couples: ClassVar[bool] = False
    """Whether the value belongs to the whole batch, and is no power of the batch size."""

    @property
    def origin(self) -> Any:
        """The operation that made one value of several examples, or a value of positions; None without such one."""
        return None

    @property
    def degree(self) -> int:
        """The power of the batch size with which the values grow."""
        return 0

    @property
    def stride(self) -> int:
        """Whether the values are positions of examples. 0: they are not. A positive number: each value is the position
        of its example times this number, or up to the next multiple of it. -1: any other function of positions."""
        return 0


class Alike(State):
    """Equal on all replicas: constants, variables, the sizes of other axes.

    >>> Alike() == SAME
    True
    """


class Unknown(State):
    """Nothing is claimed: values of gradients, and values that follow from an operation that is noted already.

    >>> Unknown() == NO_CLAIM
    True
    """


@dataclass(frozen=True, kw_only=True)
class OfExamples(State):
    """Each entry belongs to one example.

    >>> Rows(stride=4).looked_up().stride, One().looked_up().stride
    (-1, 0)
    """

    stride: int = 0
    origin: Any = None

    def looked_up(self) -> Self:
        """Return the state of entries of a table that is equal on all replicas. The class has an example."""
        return replace(self, stride=OTHER if self.stride else 0)


@dataclass(frozen=True)
class Rows(OfExamples):
    """Each entry belongs to one example, found along an axis, or along several.

    >>> Rows((1,)).axis, Rows(outer=2, inner=3).each
    (1, 6)
    """

    axes: tuple[int, ...] = (0,)
    outer: int | None = 1
    """How many times the axis has the whole batch, one after the other; None if that is not known."""
    inner: int | None = 1
    """How many consecutive entries of the axis one example has; None if that is not known."""
    degree: int = 0
    subset: Any = None
    """By what condition some examples were chosen, so that others are missing; None for all."""
    free: bool = False
    """Whether the entries are of no example, as zeros and random numbers in the shape of a batch."""

    @property
    def axis(self) -> int:
        """The first axis along which the examples are."""
        return self.axes[0]

    @property
    def each(self) -> int | None:
        """How many entries of the axis there are for each example; None if that is not known."""
        return None if self.outer is None or self.inner is None else self.outer * self.inner

    @property
    def are_one_each(self) -> bool:
        """Whether there is one entry along the first axis for each example of the batch, and it is no position."""
        return self.axes == (0,) and self.each == 1 and not self.subset and not self.stride

    def at(self, *axes: int) -> Rows:
        """Return the same rows along other axes.

        >>> Rows().at(2).axes
        (2,)
        """
        return replace(self, axes=axes)

    def entry(self) -> One:
        """Return the state of the entries of one example.

        >>> Rows(stride=2).entry().stride
        2
        """
        return One(stride=self.stride, origin=self.origin)

    def sizes(self, operation: Any) -> Sizes:
        """Return the state of the shape that an operation reads.

        >>> Rows(outer=2, inner=3).sizes("Shape").times
        6
        """
        return Sizes(self.axis, self.each, operation if self.subset else None, self.subset)


class One(OfExamples):
    """The whole tensor belongs to one example, as an element in a loop over the batch does.

    >>> One(stride=1).stride
    1
    """


@dataclass(frozen=True)
class Sizes(State):
    """A shape with the batch size at one place.

    >>> Sizes(0).at(1).place
    1
    """

    place: int
    times: int | None = 1
    """How many times the size is the number of examples; None if that is not known."""
    origin: Any = None
    """The operation that read the shape of chosen examples."""
    subset: Any = None
    """By what condition some examples were chosen; None for all."""

    def at(self, place: int) -> Sizes:
        """Return the same shape with the batch size at another place. The class has an example."""
        return replace(self, place=place)


@dataclass(frozen=True)
class Distinct(State):
    """Distinct entries of a tensor, each once; examples refer to them by position.

    >>> Distinct("Unique").origin
    'Unique'
    """

    origin: Any = None


@dataclass(frozen=True)
class Ragged(State):
    """A part of a ragged or sparse tensor: its entries, or which of them are of which example (see `rules.ragged`).

    >>> Ragged().part
    'ragged'
    """

    part: str = "ragged"


@dataclass(frozen=True)
class Handle(State):
    """The handle of a variable.

    >>> Handle(Variable("kernel", (), "float32")).variable.name
    'kernel'
    """

    variable: Variable


SAME = Alike()
NO_CLAIM = Unknown()
