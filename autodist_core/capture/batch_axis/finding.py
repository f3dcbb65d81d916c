"""What the static analysis found: operations that make a value of one example depend on others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PAIRS = "pairs the examples of a batch with each other"
ORDER = "goes along the examples of a batch"
PLACE = "takes examples by their place in the batch"
WHOLE = "gives each example a value of the whole batch"
CHOICE = "chooses by a value of the whole batch"


@dataclass(frozen=True)
class Coupling:
    """An operation whose result for one example depends on others."""

    operation: Any
    what: str
    within: Any
    """The operation of the step itself in which it runs: itself, or the call of a function."""
    by: Any
    """The operation that uses the result for single examples."""


@dataclass(frozen=True)
class Kept:
    """A variable, written with a value that the replicas' values are not combined to."""

    variable: Any
    state: Any
    operation: Any


@dataclass(frozen=True)
class Returned:
    """A result of the step that the replicas' results are not combined to."""

    index: int
    state: Any


@dataclass(frozen=True)
class Found:
    """All that was found in a step."""

    couplings: tuple[Coupling, ...] = ()
    kept: tuple[Kept, ...] = ()
    returned: tuple[Returned, ...] = ()
    undecided: tuple[Any, ...] = ()
    """Operations of which it is not known whether they mix examples."""
