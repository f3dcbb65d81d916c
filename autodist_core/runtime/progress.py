"""How far the replicas of a loose step and its updates are: what its threads tell each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Condition


@dataclass
class Progress:
    """How far the replicas and the updates are; guarded by `moved`."""

    moved: Condition = field(default_factory=Condition)
    version: int = 0
    """Updates that are done, counted in batches."""
    arrived: dict[int, int] = field(default_factory=dict)
    """For each batch whose update is to come, how many replicas have computed it."""
    expected: dict[int, int] = field(default_factory=dict)
    queued: Counter[int] = field(default_factory=Counter)
    """For each replica, the steps whose gradients wait in its queue."""
    following: int = 0
    """How many replicas are taking over the servers' values."""
    updating: bool = False
    """Whether an update has its turn: it waits for those who follow, and nobody begins to follow before it is done."""
    failure: BaseException | None = None
    end: int = 0
    """Once something failed: the first batch that is not to be trained."""
    lead: int = 0
    """The most batches by which a replica has been ahead of the updates."""

    def fail(self, failure: BaseException, batch: int) -> None:
        """Let this batch and all after it end; those before it are finished, as one device would have."""
        if self.failure is None or batch < self.end:
            self.failure, self.end = failure, batch
        self.moved.notify_all()

    def is_over(self, batch: int) -> bool:
        """Whether a batch is not to be trained any more."""
        return self.failure is not None and batch >= self.end

    @property
    def is_complete(self) -> bool:
        """Whether all gradients of the next update's batch are there."""
        return self.arrived.get(self.version, 0) == self.expected.get(self.version, -1)
