"""What a front hands over to be captured: a traced function, and what it knows about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autodist_core.capture.traversal import computed_from
from autodist_core.step.graph_item import Variable


@dataclass(frozen=True)
class Marked:
    """A gradient on its way into an optimizer: the outputs of its markers and the variable it belongs to."""

    variable: str
    occurrence: int
    values: Any
    indices: Any = None


@dataclass(frozen=True)
class Source:
    """A variable that the trace may have captured, and the handle by which the trace knows it."""

    variable: Variable
    handle: Any


@dataclass(frozen=True)
class Traced:
    """What a front hands over: one flat function graph and what it knows about it."""

    graph: Any
    sources: Sequence[Source]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    examples: Any
    total: Any
    gradients: Sequence[Marked] = ()
    updates: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    sums: Sequence[Any] = ()
    weighting: Sequence[Any] = ()
    """Where gradients come to count a replica's part of the batch: what is computed from these counts it."""
    concat_outputs: bool = False

    @cached_property
    def weighted(self) -> frozenset[str]:
        """The operations that count a replica's part of the batch.

        What no tape made (zeros for a variable that the loss does not reach) counts as a mean, and is not among them.
        """
        return computed_from(self.weighting)


def name_of(tensor: Any) -> str:
    """A tensor's name as nodes list their inputs."""
    return str(tensor.name).removesuffix(":0")
