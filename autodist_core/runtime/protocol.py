"""The abstract session and the abstract step, for one machine and for a cluster that may be lost.

In: captured steps, batches and values of variables. Out: results and values of variables. A session has the variables
of all replicas:

    session.add(item) -> step        step(arrays, total) -> outputs
    session.load({name: value})      session.read([name]) -> {name: value}

`LocalSession` runs on this machine, and `DistributedSession` over a cluster. `RecoveringSession` goes on with another
session when a node is lost.
The driver of the front uses sessions only through these types.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from autodist_core.kernel import DistributedGraph, Placement
from autodist_core.runtime.timings import Timings
from autodist_core.step.graph_item import GraphItem


class Condition(Enum):
    """What a session can still do.

    >>> print(*(condition.name for condition in Condition))
    READY SPOILT LOST
    """

    READY = "steps may run"
    SPOILT = "no step may run any more, since one with collectives failed; the state is that of before it"
    LOST = "the cluster is gone; what can be read is the last state that was safe, which may be an older one"


class Tie(Enum):
    """How a variable of the user and the session's copies of it belong together.

    >>> print(Tie.ONLY.value)
    the user's variable is the only copy
    """

    ONLY = "the user's variable is the only copy"
    HOME = "the user's variable is one of the copies, and the others follow it"
    APART = "the session has copies of its own"


class SessionStep(ABC):
    """One captured function, distributed over the replicas of a session.

    >>> from autodist_core.runtime.example import example_batch, example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> train.graph is None
    True
    >>> loss, norm = train([example_batch(5)], total=5)
    >>> loss.shape.rank, train.graph.feeds
    (0, (('replica0/x',), ('replica1/x',)))
    >>> session.close()
    """

    item: GraphItem
    """The captured function."""
    graph: DistributedGraph | None = None
    """The graph of the step's last run; None before the first run."""

    @abstractmethod
    def __call__(self, arrays: Sequence[Any], total: int) -> list[Any]:
        """Run one step on a batch of `total` examples; return the step's outputs for the whole batch."""


class Session(ABC):
    """The state of every replica and owner, and the steps that change it.

    >>> from autodist_core.runtime.example import example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> session.condition, session.known
    (<Condition.READY: 'steps may run'>, ('kernel', 'velocity', 'iterations', 'total'))
    >>> session.load({"iterations": np.array(7)})
    >>> session.read(["iterations"])["iterations"].item()
    7
    >>> session.close()
    """

    placement: Placement
    """Where the variables are."""
    condition = Condition.READY
    """What the session can still do."""

    on_one_machine = False
    """Whether values that the session keeps need not come home between calls, unless the user wishes it."""
    known: tuple[str, ...] = ()
    """The variables that the steps of this session touch."""

    @abstractmethod
    def add(self, item: GraphItem, usual: int | None = None, variables: Mapping[str, Any] | None = None) -> SessionStep:
        """Add a step to this session. The graph of the step is built when the step first runs.

        Batches of `usual` examples get a graph of their own, made for that size. `variables` has the handles of the
        user's variables by name: a session of one machine computes on these.
        """

    def tie(self, name: str) -> Tie:
        """How the user's variable and the session's copies of it belong together."""
        return Tie.APART

    def spread(self, names: Iterable[str]) -> None:  # noqa: B027 - most sessions have copies of their own only
        """Give the other copies of these variables the value of the user's variable, which is one of the copies."""

    @property
    def works_here(self) -> bool:
        """Whether this thread runs a step of the session now: what asks for a variable then is the step itself."""
        return False

    @abstractmethod
    def settle(self, stays: bool = False) -> None:
        """Wait until no replica is at work. The failure of a replica is raised here.

        Afterwards the state is safe if a machine is lost, unless it `stays` on the machines.
        """

    @abstractmethod
    def load(self, values: Mapping[str, Any]) -> None:
        """Write every copy of these variables: arrays, or over a cluster values that are kept (`recovery/on_disk.py`).
        """

    @abstractmethod
    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Read the current values of variables, one after the other: not all of them need be in memory at a time."""

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read the current values of variables."""
        return dict(self.read_each(names))

    def read_kept(self, names: Iterable[str]) -> Mapping[str, Any]:
        """Read the current values of variables, each as it is kept (`recovery/on_disk.py`): many maps of a file would
        keep as many files open.
        """
        return self.read(names)

    def write_large(self, path: str, names: Iterable[str]) -> frozenset[str]:
        """Let other machines write the large ones of these variables to a checkpoint; return the names of these.

        None is written where they do not see the folder of the path.
        """
        return frozenset()

    def keeps(self, name: str) -> bool:
        """Whether `last_safe` has a large value for this variable, whatever happens: the user's needs no memory."""
        return False

    def last_safe(self, name: str) -> Any:  # noqa: B027 - most sessions keep no state besides their own
        """The value of a variable in the last safe state, as it is kept (`recovery/on_disk.py`).

        None if this session keeps no state besides its own.
        """

    def rest(self) -> None:  # noqa: B027 - most sessions have nothing to free
        """Free what the user's variables have, too, until the next step: no step runs for a while."""

    def forget(self, names: Iterable[str]) -> None:  # noqa: B027 - on one machine there are no others to keep them
        """Free the copies of variables in the memory of the user's machine, of which all have the same value."""

    def remember(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """Write the copies that `forget` has freed. The values are those that all other copies have."""

    @abstractmethod
    def load_added(self, values: Mapping[str, np.ndarray]) -> None:
        """Set the variables that kernels added. A variable without a value here gets its initial value."""

    @abstractmethod
    def read_added(self) -> dict[str, np.ndarray]:
        """Read the variables that kernels added, such as the residuals of compressors, by name."""

    def release_kept(self) -> None:  # noqa: B027 - a session of one machine keeps none
        """Free the memory of the arrays that machines keep of the data (`runtime/kept_arrays.py`)."""

    @abstractmethod
    def measure(self, timings: Timings | None) -> None:
        """Measure each step from now on; None ends this. The steps of loose replicas are not measured."""

    @abstractmethod
    def close(self) -> None:
        """Free the state. The session cannot be used afterwards."""
