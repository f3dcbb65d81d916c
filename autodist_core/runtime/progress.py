"""The progress of a loose step: how far its replicas and its updates are.

In: the events of the step's threads, one thread for each replica. Out: the conditions for which the threads wait. Each
`LooseStep` has one `Progress`.

>>> progress = Progress(expected={0: 2})
>>> progress.arrived[0] = 1
>>> progress.is_complete
False
>>> progress.arrived[0] = 2
>>> progress.is_complete
True
"""

from collections import Counter
from dataclasses import dataclass, field
from threading import Condition


@dataclass
class Progress:
    """How far replicas and updates are. A thread reads and writes it only with `moved` acquired.

    >>> progress = Progress()
    >>> with progress.moved:
    ...     progress.fail(ValueError("no memory"), 3)
    >>> progress.is_over(2), progress.is_over(3)
    (False, True)
    """

    moved: Condition = field(default_factory=Condition)
    version: int = 0
    """The number of batches whose updates are done."""
    arrived: dict[int, int] = field(default_factory=dict)
    """For each batch whose update is not done: the number of replicas that have computed their slice."""
    expected: dict[int, int] = field(default_factory=dict)
    """For each batch whose update is not done: the number of replicas that compute a slice."""
    queued: Counter[int] = field(default_factory=Counter)
    """For each replica: the number of gradients in its queue."""
    following: int = 0
    """The number of replicas that are copying the servers' values."""
    updating: bool = False
    """Whether an update waits or runs. It waits for the replicas that follow; no other replica begins to follow."""
    failure: BaseException | None = None
    """The first failure of a replica or an update."""
    end: int = 0
    """After a failure: the first batch that is not trained."""

    def fail(self, failure: BaseException, batch: int) -> None:
        """End this batch and all later ones. The earlier batches are finished, as on one device."""
        if self.failure is None or batch < self.end:
            self.failure, self.end = failure, batch
        self.moved.notify_all()

    def is_over(self, batch: int) -> bool:
        """Whether a batch is not trained, because of a failure."""
        return self.failure is not None and batch >= self.end

    @property
    def is_complete(self) -> bool:
        """Whether all gradients of the next update's batch have arrived."""
        return self.arrived.get(self.version, 0) == self.expected.get(self.version, -1)
