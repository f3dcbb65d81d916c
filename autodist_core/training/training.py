"""One training: its session, the state of its variables, and what becomes of them when settings or machines change.

In: settings and captured steps, from a front. Out: the `TrainingState` in which a step runs. Keras's loops (`Driver`)
and marked functions (`AutoDist`) each hold one `Training`.

The first captured step opens a session. The first step with gradients opens the session of the training, in place of
one that trains nothing. Whatever can be refused is refused before anything is replaced.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from autodist_core.auto import StepTimes
from autodist_core.cluster.on_node.machine import machine_resources
from autodist_core.interrupts import defer_interrupt, ignore_repeated_interrupts
from autodist_core.kernel import Placement
from autodist_core.log import log, stage
from autodist_core.runtime.protocol import Condition
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.step.union import union
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.training import choices
from autodist_core.training.compressor_state import CompressorState
from autodist_core.training.entries import Entry
from autodist_core.training.measured import fastest, times_of
from autodist_core.training.sessions import Sessions
from autodist_core.training.settings import Settings
from autodist_core.training.state import TrainingState


class Training:
    """A session and a state under some settings, on a cluster if needed.

    >>> from autodist_core.resource_spec import ResourceSpec
    >>> training = Training(Settings(ResourceSpec.local(cpus=2), "PS"))
    >>> training.state is None, training.trained is None, training.is_lost
    (True, True, False)
    >>> training.close()
    """

    def __init__(self, settings: Settings, check: Callable[[], object] = lambda: None) -> None:
        self.check = check
        """A front's check of what it trains, which may refuse it."""
        self._sessions = Sessions(settings, check=check)
        self.state: TrainingState | None = None
        """The session and the variables as one state; None until the first step is captured."""
        self.trained: CompiledStrategy | None = None
        """The strategy of the current training; None in a session that trains nothing."""
        self._items: tuple[GraphItem, ...] = ()
        """The training steps for which the session was made."""
        self._compressors: CompressorState | None = None
        self._stayed_away: bool | None = None
        """Whether the state of the last session stayed on the machines; None before the first one."""
        self._times: StepTimes | None = None
        """What was measured for a strategy that chooses itself."""
        self._said: set[str] = set()
        """The lines that were said of the present session."""
        self.draws_as_one = False
        """Whether steps are captured to be compared with one device: replicas draw its random numbers, if they can."""

    @property
    def settings(self) -> Settings:
        """The settings. `change` sets others; the resource spec changes when a node is left out after its loss."""
        return self._sessions.settings

    def compile_strategy(self, item: GraphItem) -> CompiledStrategy:
        """The strategy for a step on these devices."""
        return self._sessions.compile_strategy(item)

    # The end of a session ----------------------------------------------------------------------------------------

    def change(self, settings: Settings) -> None:
        """Go on with other settings in a new session; on new machines if settings about machines changed."""
        before, after = self._sessions, self._sessions.changed(settings)
        with ignore_repeated_interrupts():
            self.close_session()
        self._sessions = after
        if after.fleet is not before.fleet:
            before.fleet.close()

    def close_session(self) -> None:
        """Close the session. The compressors' state is kept for the next one."""
        state = self.state
        if state is None:
            return
        self._stayed_away = state.stays_away
        try:
            if state.leaves_values:
                with stage("keeping what stayed on the machines"):
                    _even_if_interrupted(state.settle)
        finally:
            self._compressors = self.compressor_state()
            with defer_interrupt():
                self.state, self.trained, self._items, self._said = None, None, (), set()
            _end(state)

    def close(self) -> None:
        """Free the devices and machines. The next step opens a new session."""
        with ignore_repeated_interrupts():
            try:
                self.close_session()
            finally:
                self._sessions.fleet.close()

    @property
    def has_ended(self) -> bool:
        """Whether the session can run no further step. A session that has lost a machine may go on with others."""
        return self.state is not None and self.state.session.condition is not Condition.READY

    @property
    def is_lost(self) -> bool:
        """Whether a node is lost, and the session with it. The other nodes have nothing to do any more: `close`."""
        lost = self.state is not None and self.state.session.condition is Condition.LOST
        return lost or self._sessions.fleet.lost

    def resume(self) -> None:
        """Watch the variables again, in this thread. Any of them may have changed since `release`.

        What keeps this program from starting the machines is raised here, before a loop begins.
        """
        self._sessions.fleet.require_startable()
        if self.state is not None:
            self.state.resume()

    def release(self) -> None:
        """Stop watching the variables. They are plain variables again."""
        if self.state is not None:
            self.state.release()

    def pull(self) -> None:
        """Bring the whole state back to the variables, even if Ctrl-C is pressed during this."""
        if self.state is not None:
            with stage("bringing the state home"):
                _even_if_interrupted(partial(self._settle_and_pull, self.state))

    def release_kept(self) -> None:
        """Free the memory of the arrays that machines keep of the data."""
        if self.state is not None and self.state.session.condition is not Condition.LOST:
            self.state.session.release_kept()

    def say_once(self, line: str) -> None:
        """Log what a step of this training does, unless this was said before.

        >>> from autodist_core.resource_spec import ResourceSpec
        >>> training = Training(Settings(ResourceSpec.local(cpus=2), "PS"))
        >>> training.say_once("64 per step = 2 x 32 on 1 machine")
        >>> training.close()
        """
        if line not in self._said:
            self._said.add(line)
            log.info("%s", line)

    # The compressors' state --------------------------------------------------------------------------------------

    def compressor_state(self) -> CompressorState | None:
        """The compressors' state after the last step; None if the strategy has no compressors."""
        if self.state is not None and self.trained is not None:
            values = self.state.session.read_added()
            return CompressorState(self.trained.id, values) if self.trained.compresses else None
        return self._compressors

    def set_compressor_state(self, state: CompressorState | None) -> None:
        """Let the compressors go on from this state. None lets them start anew."""
        if self.state is not None and self.trained is not None:
            self.state.session.load_added(state.for_strategy(self.trained.id) if state is not None else {})
        else:
            self._compressors = state

    # A session ---------------------------------------------------------------------------------------------------

    def open(self, item: GraphItem) -> TrainingState:
        """The state in which a captured step runs."""
        self._sessions.start_machines()
        if updates(item) and not self._has_place_for(item):
            self._begin((*self._items, item))
        elif self.state is None:
            session = self._sessions.open(lambda: self._sessions.placement_without_training(item))
            self.state = TrainingState(session, self._stays_away)
        assert self.state is not None
        return self.state

    def measure_once(self, item: GraphItem, entries: Sequence[Entry], arrays: Sequence[Any], total: int) -> None:
        """Measure a training step for a strategy that is chosen by its predicted time, if none was measured before.

        An earlier program may have measured it, and have chosen.
        """
        settings, sessions = self.settings, self._sessions
        if settings.strategy.reads_steps and item.gradients:
            new = self._times is None and not sessions.tried
            if new and (found := choices.earlier(settings.strategy, item, settings.resource_spec)) is not None:
                self._times, sessions.tried = found[1], True
                sessions.decide(item, found[0])
            self._times = self._times or times_of(item, entries, arrays, total, settings.resource_spec)
            item.found[StepTimes] = self._times

    def try_once(self, item: GraphItem, entries: Sequence[Entry], arrays: Sequence[Any], total: int) -> None:
        """Take the fastest of the builder's candidates, before the first training step under these settings."""
        if item.gradients and self.trained is None and not self._sessions.tried:
            strategy = fastest(self._sessions, item, entries, arrays, total)
            self._sessions.tried = True
            if strategy is not None:
                self._sessions.decide(item, strategy)
                choices.keep(self.settings.strategy, item, self.settings.resource_spec, strategy, tried=True)

    def placed_with(self, item: GraphItem) -> GraphItem:
        """The training steps of the session with which a step is placed, and the step itself, as one.

        >>> from autodist_core.resource_spec import ResourceSpec
        >>> training = Training(Settings(ResourceSpec.local(cpus=2), "PS", None, None, "raise", 60.0, False))
        >>> item = GraphItem(())
        >>> training.placed_with(item) is item
        True
        """
        if not updates(item) or not self._items:
            return item
        return union(self._items if self._has_place_for(item) else (*self._items, item))

    def _has_place_for(self, item: GraphItem) -> bool:
        """Whether the session has owners for all that a training step updates."""
        if self.state is None or self.trained is None:
            return False
        placement, step = self.state.session.placement, StepIndex.of(item)
        placed = placement.updated >= step.written_by_update | step.trained.keys()
        return placed and placement.partitioner.can_split(step)

    def _begin(self, items: tuple[GraphItem, ...]) -> None:
        """Make a session that runs these training steps, and replace a session that has no place for all of them.

        Every step that can be refused comes first. A refusal therefore changes nothing, and the next call is refused
        too.
        """
        item = union(items)
        if self.state is not None:
            self._stayed_away = self.state.stays_away
        trained = self.compile_strategy(item)
        session, before = self._sessions.open(lambda: self._placement(item)), self.state
        try:
            if self._compressors is not None:
                session.load_added(self._compressors.for_strategy(trained.id))
            if before is not None:
                before.settle()
                before.pull_all()
        except BaseException:
            session.close()
            raise
        with defer_interrupt():
            self.state, self.trained, self._items = TrainingState(session, self._stays_away), trained, items
            self._compressors = None
        if before is not None:
            _end(before)

    def _settle_and_pull(self, state: TrainingState) -> None:
        try:
            state.settle(stays=state.leaves_values)
        finally:
            if not state.leaves_values:
                state.session.rest()
                self._stay_without_room(state)
            # Loose replicas may have failed. The state is pulled all the same.
            state.pull_all(again=state.session.condition is Condition.LOST)

    def _stay_without_room(self, state: TrainingState) -> None:
        """Leave the state on the machines where this program has too little memory for it."""
        sizes = {each.name: each.byte_size for item in self._items for each in item.variables}
        need = sum(size for name, size in sizes.items() if state.session.keeps(name))
        if state.stays_away is None and need and need > (free := machine_resources()["memory_free"]):
            state.stays_away = True
            log.warning(
                "The state stays on the machines: it takes %.1f GiB, and %.1f are free for this program. A variable "
                "comes when it is read. keep_state=\"model\" would bring all of them.", need / 2**30, free / 2**30,
            )

    @property
    def _stays_away(self) -> bool | None:
        kept = self.settings.keep_state
        return self._stayed_away if kept is None else kept == "machines"

    def _placement(self, item: GraphItem) -> Placement:
        strategy = self.compile_strategy(item)
        if self.trained is not None:
            # After a restart, the machines may be others than at the beginning of the training.
            self.trained = strategy
        return self._sessions.placement(item, strategy)


def updates(item: GraphItem) -> bool:
    """Whether a step has an update: of gradients, or of values that are alike on all replicas.

    >>> updates(GraphItem(()))
    False
    """
    return bool(item.gradients or StepIndex.of(item).update_of)


def _end(state: TrainingState) -> None:
    try:
        with stage("keeping what the session has"):
            if state.leaves_values and state.session.condition is Condition.LOST:
                state.go_back()
            _even_if_interrupted(state.let_go)
    finally:
        state.session.close()


def _even_if_interrupted(action: Callable[[], object]) -> None:
    """Do this, even if Ctrl-C is pressed while it is done."""
    try:
        action()
    except KeyboardInterrupt:
        action()
        raise
