"""What a session is, and what a step of one is, whether it runs on this machine or over a cluster that may be lost.

A session holds the variables of all replicas. Steps are added to it, variables are loaded into it and read from it:

    session.add(item) -> step        step(arrays, total) -> outputs
    session.load({name: value})      session.read([name]) -> {name: value}

`DistributedSession` is one on the devices that are there; `LastingSession` goes on with another one when a node is
lost. Who uses a session knows neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from autodist_core.kernel import DistributedGraph, Placement
from autodist_core.step.graph_item import GraphItem


class Condition(Enum):
    """What may still be done with a session.

    >>> print(*(condition.name for condition in Condition))
    READY SPOILT LOST
    """

    READY = "steps may run"
    SPOILT = "no step may run any more, since one with collectives failed; the state is that of before it"
    LOST = "the cluster is gone; what can be read is the last state that was safe, which may be an older one"


class SessionStep(ABC):
    """One captured function, distributed over the replicas of a session."""

    item: GraphItem
    """What was captured."""

    @abstractmethod
    def __call__(self, arrays: Sequence[Any], total: int) -> list[Any]:
        """Run one step on a batch of `total` examples; returns the step's outputs for the whole batch."""

    @property
    @abstractmethod
    def graph(self) -> DistributedGraph | None:
        """The graph that it first ran as; None before it did."""


class Session(ABC):
    """The state of every replica and owner, and the steps that change it."""

    placement: Placement
    """Where the variables are."""

    @property
    @abstractmethod
    def condition(self) -> Condition:
        """What may still be done with it."""

    @property
    @abstractmethod
    def known(self) -> tuple[str, ...]:
        """The variables that the steps of this session touch."""

    @abstractmethod
    def add(self, item: GraphItem, usual: int | None = None) -> SessionStep:
        """A step of this session; its graph is built when it first runs.

        Batches of `usual` examples get a graph of their own, made for that size.
        """

    @abstractmethod
    def settle(self) -> None:
        """Wait until no replica is at work; what failed meanwhile is raised."""

    @abstractmethod
    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Write variables, every copy of each."""

    @abstractmethod
    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The current value of variables."""

    @abstractmethod
    def load_added(self, values: Mapping[str, np.ndarray]) -> None:
        """Set what kernels keep between steps; what is not among the values starts anew."""

    @abstractmethod
    def read_added(self) -> dict[str, np.ndarray]:
        """What kernels keep between steps, such as the residuals of compressors, by name."""

    @abstractmethod
    def close(self) -> None:
        """Free the state; the session cannot be used afterwards."""
