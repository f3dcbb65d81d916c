"""The session that outlives its cluster: after the loss of a node it goes on with another session.

In: a function that opens a session on the present cluster, and functions that renew or restart the cluster. Out: the
results of the steps, as of any session. `Backup` has the last safe state and the later events. After a loss, another
session gets the state and repeats the events. Without a restart, reads return the last safe values.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from autodist_core.errors import NodeLostError
from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import DistributedGraph, Placement
from autodist_core.log import log
from autodist_core.runtime.batch_slices import copied
from autodist_core.runtime.interruptible import BrokenOffError, UnendedError
from autodist_core.runtime.protocol import Condition, Session, SessionStep
from autodist_core.runtime.recipe import of_zeros
from autodist_core.runtime.recovery.backup import Backup, Loaded, Ran
from autodist_core.runtime.recovery.on_disk import Away, array_of
from autodist_core.runtime.timings import Timings
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex

T = TypeVar("T")
_MOST_BROKEN = 2
"""How often a call is repeated after a network error without a lost node. The next such error is raised."""


class RecoveringSession(Session):
    """A session over sessions that may be lost.

    `open_session` opens a session on the present cluster. `renew` gets the network error, and starts the cluster's
    servers again. `restart` gets the loss; it starts another cluster, or raises. `progress` is called after each step.
    `backup_every` is that of a `Backup`.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.runtime.example import ONE_SERVER, example_batch, example_cluster, example_values
    >>> from autodist_core.runtime.session import DistributedSession
    >>> from autodist_core.strategy import PS
    >>> class Cut(DistributedSession):
    ...     def call(self, doing, call, *arguments):
    ...         if doing == "training step 2":
    ...             raise BrokenOffError("the network is cut")
    ...         return super().call(doing, call, *arguments)
    >>> placement = example_placement(PS(), tasks=ONE_SERVER)
    >>> sessions = (kind(placement, example_cluster()) for kind in (Cut, DistributedSession))
    >>> session = RecoveringSession(lambda: next(sessions), renew=lambda error: print("renewed, as", error))
    >>> train = session.add(example_step())
    >>> session.load(example_values())
    >>> for _ in range(2):
    ...     outputs = train([example_batch(5)], total=5)
    renewed, as the network is cut
    >>> session.read(["iterations"])["iterations"].item()
    2
    >>> session.close()
    """

    def __init__(
        self, open_session: Callable[[], Session], renew: Callable[[BrokenOffError], None],
        restart: Callable[[NodeLostError], None] | None = None, progress: Callable[[], None] = lambda: None,
        backup_every: float | None = None,
    ) -> None:
        self._open = open_session
        self._renew = renew
        self._restart = restart
        self._progress = progress
        self._backup = Backup(backup_every)
        self._added: list[tuple[GraphItem, int | None, frozenset[str]]] = []
        """The steps, each with the variables that it may write."""
        self._sizes: dict[str, int] = {}
        self._unloaded: dict[str, Away | np.ndarray] = {}
        """The values that are written before the next step, or with which an earlier write has not succeeded."""
        self._forgotten: set[str] = set()
        """The variables of which the program's machine has no copies, since the program has the values."""
        self._ran = 0
        """How many steps have run since the last `rest`."""
        self._unraised: NodeLostError | None = None
        """A loss that a read met. The reader got the last safe values; the next call of `settle` raises the loss."""
        session = open_session()
        self._session: Session | None = session
        self._steps: list[SessionStep] = []
        self.placement: Placement = session.placement

    def add(self, item: GraphItem, usual: int | None = None, variables: Mapping[str, Any] | None = None) -> SessionStep:
        """Add a step to this session."""
        self._added.append((item, usual, _written_by(item)))
        self._sizes.update((each.name, each.byte_size) for each in item.variables)
        if self._session is not None:
            self._steps.append(self._session.add(item, usual))
            self.known = self._session.known
        return _RecoveringStep(self, len(self._added) - 1, item)

    def run(self, event: Ran) -> tuple[list[Any], DistributedGraph | None]:
        """Run a step on a batch, on another cluster if the present one is lost. Return its outputs and its graph."""
        outputs = self._try_until_done(lambda session: self._run(session, event))
        self._ran += 1
        self._progress()
        if self._backup.due:
            self._try_until_done(self._back_up)
        return outputs, self._steps[event.step].graph

    def settle(self, stays: bool = False) -> None:
        """Wait until no replica is at work, and back up the state: the results of a finished call cannot be lost.

        A state that `stays` is backed up during the calls and when the session ends, and not here. That of loose
        replicas always is: reading it waits for them. A loss that only a read met so far is raised here.
        """
        self._raise_unraised()
        stays = stays and self.placement.loose is None
        if self._session is not None and not stays and not self._backup.current:
            with contextlib.suppress(UnendedError):
                self._try_until_done(self._back_up)

    def load(self, values: Mapping[str, Away | np.ndarray]) -> None:
        """Let every copy of these variables be written before the next step, unless it has the value already.

        The values are copied here, large ones to the disk; large zeros are a recipe, and do not travel. So the caller
        may free its own before machines have them.
        """
        for name, value in values.items():
            if name in self._unloaded or not self._backup.has(name, value):
                self._unloaded[name] = of_zeros(value) or self._backup.on_disk.keep(value)

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Read the current values of variables, one after the other; the last safe values if the cluster is lost."""
        names = tuple(names)
        try:
            found = self.read_kept(names)
        except UnendedError:
            found = self._safe(names)
        except NodeLostError as error:
            if self._session is not None:
                raise
            log.warning("A variable that is read now has its value of the last safe state. %s", error)
            self._unraised, found = error, self._safe(names)
        yield from ((name, array_of(kept)) for name, kept in found.items())

    def read_kept(self, names: Iterable[str]) -> Mapping[str, Away | np.ndarray]:
        """Read the current values of variables. If they are lost, that is raised: older ones are of another step."""
        self._raise_unraised()
        names = tuple(names)
        if self._session is not None and not self._backup.written.isdisjoint(names):
            if 2 * sum(map(self._sizes.__getitem__, names)) < sum(map(self._sizes.__getitem__, self.known)):
                return self._try_until_done(lambda session: self._read(session, names))
            # A read of most of the state, as at the end of a fit, backs up all of them.
            self._try_until_done(self._back_up)
        return self._safe(names)

    def _safe(self, names: Iterable[str]) -> dict[str, Away | np.ndarray]:
        return {name: safe for name in names if (safe := self.last_safe(name)) is not None}

    def write_large(self, path: str, names: Iterable[str]) -> frozenset[str]:
        """Let the machines write what they have of large variables; return the names of these."""
        names = tuple(names)

        def write(session: Session) -> frozenset[str]:
            self._load_rest(session)
            return session.write_large(path, names)

        return frozenset() if self._session is None else self._try_until_done(write)

    def keeps(self, name: str) -> bool:
        """Whether the large value of a variable is in the last safe state."""
        return isinstance(self.last_safe(name), Away)

    def last_safe(self, name: str) -> Away | np.ndarray | None:
        """The value of a variable in the last safe state, as it is kept."""
        # What is still to be written is newer than what the session has.
        return self._unloaded.get(name, self._backup.values.get(name))

    def rest(self) -> None:
        """Free the copies that the program's machine has of what is safe on the disk of the program.

        After a single step they stay: a call such as `train_on_batch` is probably followed by another one.
        """
        ran, self._ran = self._ran, 0
        if ran < 2 or self._session is None or not self._backup.current or self.placement.loose is not None:
            return
        sums = {each.name for item, *_ in self._added for each in item.variables if each.aggregation == "sum"}
        names = {name for name in self.known if self.keeps(name)} - sums
        # Noted first: some may be gone even if the call fails.
        self._forgotten |= names
        with contextlib.suppress(NodeLostError, BrokenOffError):
            self._session.forget(sorted(names))

    def read_added(self) -> dict[str, np.ndarray]:
        """Read the variables that kernels added."""
        if self._session is None or self._backup.steps == self._backup.done:  # only a training step changes them
            return self._backup.added
        return self._try_until_done(lambda session: session.read_added())

    def load_added(self, values: Mapping[str, np.ndarray]) -> None:
        """Set the variables that kernels added."""
        self._backup.added = dict(values)
        self._try_until_done(lambda session: session.load_added(values))

    def release_kept(self) -> None:
        """Free the memory of the arrays that machines keep. With a lost machine the session is closed anyway."""
        if self._session is not None:
            with contextlib.suppress(NodeLostError, BrokenOffError):
                self._session.release_kept()

    def measure(self, timings: Timings | None) -> None:
        """Measure each step of the present session; steps after a restart are not measured."""
        if self._session is not None:
            self._session.measure(timings)

    def close(self) -> None:
        """Free the state."""
        if self._session is not None:
            self._session.close()

    def _run(self, session: Session, event: Ran) -> list[Any]:
        if session.condition is Condition.SPOILT:
            raise BrokenOffError("A step failed, and collectives over several machines do not survive that.")
        self._load_rest(session)
        item, _, written = self._added[event.step]
        needed = self._forgotten.intersection(each.name for each in item.variables)
        if needed:
            session.remember({name: self._backup.values[name] for name in sorted(needed)})
            self._forgotten -= needed
        try:
            outputs = self._steps[event.step](event.arrays, event.total)
            self._backup.ran(event, bool(item.gradients), written)
        except BaseException:
            # After Ctrl-C the step goes on. The state is read when it has ended.
            self._backup.written.update(written)
            raise
        return outputs

    def _try_until_done(self, action: Callable[[Session], T]) -> T:
        """Do this in the session, or in another one that was brought to the state before an error."""
        if self._session is None:
            self._raise_unraised()
            raise NodeLostError("the cluster", f"{self._backup}; call fit again to start another one")
        broken = 0
        failure: NodeLostError | BrokenOffError | None = None
        while True:
            try:
                if failure is not None:
                    self._go_on_after(failure)
                assert self._session is not None
                return action(self._session)
            except UnendedError as error:
                # The user leaves: no other cluster is started. What is left is the last safe state.
                log.warning("%s The next call starts the machines again; %s.", error, self._backup)
                self._close_lost()
                raise
            except (NodeLostError, BrokenOffError) as error:
                failure = error
                broken += isinstance(error, BrokenOffError)
                # Without a cluster, the error says what is left.
                if broken > _MOST_BROKEN or (isinstance(error, NodeLostError) and error.left):
                    raise
                self._close_lost()

    def _close_lost(self) -> None:
        lost, self._session, self.condition = self._session, None, Condition.LOST
        if lost is not None:
            lost.close()

    def _go_on_after(self, error: NodeLostError | BrokenOffError) -> None:
        if isinstance(error, BrokenOffError):
            self._renew(error)
            self._repeat()
            return
        if self._restart is None:
            raise error.leaving(str(self._backup)) from None
        try:
            self._restart(error)
            self._repeat()
        except (NodeLostError, BrokenOffError):
            raise
        except Exception as failure:
            raise error.leaving(f"it was not started again: {failure}\nSo {self._backup}") from failure

    def _repeat(self) -> None:
        """Open another session, load the safe state, and repeat the events. Only then put it in place."""
        session = self._open()
        try:
            steps = [session.add(item, usual) for item, usual, _ in self._added]
            known = set(session.known)
            session.load({name: value for name, value in self._backup.values.items() if name in known})
            session.load_added(self._backup.added)
            for event in self._backup.events:
                if isinstance(event, Loaded):
                    session.load(event.values)
                else:
                    steps[event.step](event.arrays, event.total)
        except BaseException as error:
            session.close()
            if isinstance(error, KeyboardInterrupt):
                error.add_note(f"This was while steps were done again after a restart, so {self._backup}.")
            raise
        with defer_interrupt():
            self._session, self._steps, self.placement = session, steps, session.placement
            self.condition, self._forgotten = Condition.READY, set()

    def _back_up(self, session: Session) -> None:
        self._load_rest(session)
        self._backup.take(session)
        log.debug("The state after training step %d is safe.", self._backup.steps)

    def _read(self, session: Session, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        self._load_rest(session)
        found = session.read(name for name in names if name in self._backup.written)
        return {name: found[name] if name in found else array_of(self.last_safe(name)) for name in names}

    def _load_rest(self, session: Session) -> None:
        """Write the values of all unfinished loads, also of an earlier load that was broken off."""
        if self._unloaded:
            session.load(self._unloaded)
            with defer_interrupt():
                self._backup.loaded(self._unloaded)
                self._forgotten -= self._unloaded.keys()
                self._unloaded = {}

    def _raise_unraised(self) -> None:
        error, self._unraised = self._unraised, None
        if error is not None:
            raise error


def _written_by(item: GraphItem) -> frozenset[str]:
    """The variables that a step may write: a training step all that it touches, others those that the graph writes."""
    if item.gradients:
        return frozenset(variable.name for variable in item.variables if variable.handle)
    return StepIndex.of(item).written_by_compute


class _RecoveringStep(SessionStep):
    """One captured function of a recovering session."""

    def __init__(self, session: RecoveringSession, number: int, item: GraphItem) -> None:
        self._session = session
        self._number = number
        self.item = item

    def __call__(self, arrays: Sequence[Any], total: int) -> list[Any]:
        """Run one step on a batch of `total` examples."""
        # Copies: the step may be repeated later, and the user may reuse the memory of the arrays.
        outputs, self.graph = self._session.run(Ran(self._number, tuple(map(copied, arrays)), total))
        return outputs
