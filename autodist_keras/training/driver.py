"""Runs Keras's own loops on a distributed session, and opens and ends what they need for it.

While a call runs, Keras finds our step functions on the model. The first batch captures a step, which opens a session;
afterwards the model holds the trained state and Keras's own functions again. Session and steps stay for the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from autodist_core.cluster.chief import Fleet
from autodist_core.cluster.on_node.standby import become_agent_unless_chief
from autodist_core.errors import NodeLostError, SessionError
from autodist_core.interrupts import defer_interrupt, ignore_repeated_interrupts
from autodist_core.kernel import Placement, Tasks, inference, place
from autodist_core.runtime import Condition, DistributedSession, LastingSession, Session
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_keras import checks
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.tracing import CapturedStep
from autodist_keras.seams import LOOP_ASKS
from autodist_keras.settings import Settings
from autodist_keras.training.compressor_state import CompressorState
from autodist_keras.training.exclusive import claimed, in_own_thread, is_claimed
from autodist_keras.training.state import State
from autodist_keras.training.step_functions import StepFunction, on_batches, on_iterator, read_batch
from autodist_keras.training.strategies import Strategies

MODES = ("train", "test", "predict")


@dataclass(frozen=True)
class Running:
    """What belongs to one session. The driver replaces all of it at once: a refusal leaves the old one as it was."""

    functions: Mapping[str, StepFunction] = field(default_factory=dict)
    """The step functions by mode."""
    state: State | None = None
    """The session and the model as one state; None until the first step is captured."""
    trained: CompiledStrategy | None = None
    """The strategy of the training; None in a session that trains nothing."""


class Driver:
    """What runs a model under its settings: captured steps, the session they run in, and a cluster where there is one.

    `change` gives it other settings; where a node is left out, the resource spec changes by itself.
    """

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.fleet = _fleet(settings)
        self.strategies = Strategies()
        self._running = Running()
        self._compiled_as: checks.Identity | None = None
        self._compressors: CompressorState | None = None
        self._asked = False
        """Whether Keras asked for a step function in the call that is under way."""

    def change(self, settings: Settings) -> None:
        """Go on with other settings, in a new session, and on new machines where they are about machines."""
        self.require_idle()
        moves = settings.of_the_cluster != self.settings.of_the_cluster
        fleet, before = _fleet(settings) if moves else self.fleet, self.fleet
        with ignore_repeated_interrupts():
            self._drop()
        self.settings, self.strategies, self.fleet = settings, Strategies(), fleet
        if moves:
            before.close()

    def _drop(self) -> None:
        """Forget every captured step, and the session."""
        state = self.state
        if state is not None:
            self._compressors = self.compressor_state()
        self._running, self._compiled_as = Running(), None
        if state is not None:
            state.release()
            state.session.close()

    def close(self) -> None:
        """Free the devices and machines; the next call begins anew."""
        self.require_idle()
        with ignore_repeated_interrupts():
            try:
                self._drop()
            finally:
                self.fleet.close()

    # What runs ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """The session and the model as one state, where a session is open."""
        return self._running.state

    @property
    def trained(self) -> CompiledStrategy | None:
        """The strategy of the training that is under way."""
        return self._running.trained

    @property
    def functions(self) -> Mapping[str, StepFunction]:
        """The step functions of the session, by mode."""
        return self._running.functions

    # What is captured --------------------------------------------------------------------------------------------

    @property
    def captured(self) -> CapturedStep | None:
        """The training step, if one was captured."""
        train = self.functions.get("train")
        return train.captured if train is not None else None

    def captured_for(self, data: Any) -> CapturedStep:
        """The training step, captured for a batch as `train_step` gets it; nothing runs."""
        checks.compiled(self.model)
        checks.optimizer(self.model)
        batch = read_batch(data)
        function = StepFunction(self.model, self.model.train_step, False, self._open, self.settings.fuses)
        return function.capture(batch, function.specs_for(batch))

    def compile_strategy(self, item: GraphItem) -> CompiledStrategy:
        """What the strategy says of a step on these devices."""
        return self.strategies.compiled(self.settings.strategy, item, self.settings.resource_spec)

    # What compressors keep ---------------------------------------------------------------------------------------

    def compressor_state(self) -> CompressorState | None:
        """What the compressors kept after the last step, nothing maybe; None where the strategy has none."""
        if self.state is not None and self.trained is not None:
            values = self.state.session.read_kept()
            return CompressorState(self.trained.id, values) if self.trained.compresses else None
        return self._compressors

    def set_compressor_state(self, state: CompressorState | None) -> None:
        """Let the compressors go on from this state, or start anew."""
        if self.state is not None and self.trained is not None:
            self.state.session.load_kept(state.for_strategy(self.trained.id) if state is not None else {})
        else:
            self._compressors = state

    # A call ------------------------------------------------------------------------------------------------------

    def require_idle(self, what: str = "compile, close or change its settings") -> None:
        """Raise while a call is under way, with what is to wait for its end."""
        if is_claimed(self.model, self):
            raise SessionError(f"this DistributedModel is training: {what} afterwards.")

    @contextmanager
    def running(self, loop: str) -> Iterator[None]:
        """Keras calls our step functions while this is open; before and after, it is a plain model.

        `loop` names the method of Keras's that runs meanwhile. A SeamError says so if it ran without our functions.
        """
        with claimed(self.model, self) as outermost:
            if outermost:
                with ignore_repeated_interrupts(), self._own_functions():
                    self._asked = False
                    yield
                    own = loop in vars(self.model) or getattr(type(self.model), loop) is not getattr(keras.Model, loop)
                    if not self._asked and not own:
                        raise LOOP_ASKS.error(f"{loop} ran on one device, by Keras alone")
            else:
                yield

    @contextmanager
    def _own_functions(self) -> Iterator[None]:
        # What is entered here ends in the opposite order, and all of it does.
        with ExitStack() as ending:
            self._drop_what_is_outdated()
            ending.callback(self._close_if_lost)
            ending.enter_context(self._functions_put_back())
            ending.callback(self._release)
            ending.callback(self._pull)
            if self.state is not None:
                self.state.resume()
            for mode in MODES:
                ending.enter_context(hook(self.model, f"make_{mode}_function", self._maker(mode)))
            yield

    def _drop_what_is_outdated(self) -> None:
        identity = checks.identity_of_compile(self.model)
        ended = self.state is not None and self.state.session.condition is not Condition.READY
        if identity != self._compiled_as or ended or self.fleet.lost:
            self._drop()
            self._compiled_as = identity

    @contextmanager
    def _functions_put_back(self) -> Iterator[None]:
        """Keras's own functions are the model's again afterwards, or none are, where it was compiled meanwhile."""
        before = {mode: getattr(self.model, f"{mode}_function") for mode in MODES}
        try:
            yield
        finally:
            same = checks.identity_of_compile(self.model) == self._compiled_as
            for mode, function in before.items():
                object.__setattr__(self.model, f"{mode}_function", function if same else None)

    def _pull(self) -> None:
        """Bring the state back to the model, all of it, also where Ctrl-C is pressed only now."""
        if self.state is not None:
            try:
                self._bring_home(self.state)
            except KeyboardInterrupt:
                self._bring_home(self.state)
                raise

    @staticmethod
    def _bring_home(state: State) -> None:
        try:
            state.settle()
        finally:
            # Also where replicas that ran ahead have failed meanwhile.
            state.pull_all(again=state.session.condition is Condition.LOST)

    def _release(self) -> None:
        if self.state is not None:
            self.state.release()

    def _close_if_lost(self) -> None:
        # Nobody waits for the other nodes any more.
        if self._is_lost:
            self._drop()
            self.fleet.close()

    @property
    def _is_lost(self) -> bool:
        """Whether a node is gone, and with it what the session was."""
        return self.fleet.lost or (self.state is not None and self.state.session.condition is Condition.LOST)

    def _maker(self, mode: str) -> Callable[..., None]:
        def make(force: bool = False) -> None:
            del force
            self._asked = True
            function = self.functions.get(mode)
            if function is None:
                if mode == "train":
                    checks.optimizer(self.model)
                    checks.say_what_is_not_done(self.model, self.settings.resource_spec)
                step = getattr(self.model, f"{mode}_step")
                function = StepFunction(
                    self.model, step, mode == "predict", self._open, self.settings.fuses, self.settings.replicas == 1,
                )
                self._running = replace(self._running, functions={**self.functions, mode: function})
            run = on_batches(function) if mode == "predict" else on_iterator(function, self.model)
            object.__setattr__(self.model, f"{mode}_function", in_own_thread(self.model, run))

        return in_own_thread(self.model, make)

    # A session ---------------------------------------------------------------------------------------------------

    def _open(self, item: GraphItem) -> State:
        """The state in which a captured step runs: the training's where there is one."""
        spec = self.settings.resource_spec
        if len(spec.nodes) > 1 or self.fleet.cluster is not None:
            self.fleet.start()
        else:
            checks.local_spec(spec)
        checks.batched(self.model, self.settings.replicas)
        if item.gradients and self.trained is None:
            self._begin_training(item)
        elif self.state is None:
            self._running = replace(self._running, state=State(self._session(self._placement_without_training)))
        assert self.state is not None
        return self.state

    def _begin_training(self, item: GraphItem) -> None:
        """Make a session for a training, and put it in the place of one that trains nothing.

        Everything that can be refused comes first. Then nothing was changed, and the next call is refused too.
        """
        trained = self.compile_strategy(item)
        session, before = self._session(lambda: self._placement(item)), self.state
        try:
            if self._compressors is not None:
                session.load_kept(self._compressors.for_strategy(trained.id))
            if before is not None:
                before.pull_all()
        except BaseException:
            session.close()
            raise
        with defer_interrupt():
            self._running = Running({"train": self.functions["train"]}, State(session), trained)
            self._compressors = None
            if before is not None:
                before.release()
        if before is not None:
            before.session.close()

    def _session(self, placement: Callable[[], Placement]) -> Session:
        """A session here, or one over all nodes, which is made again where they are."""
        fleet = self.fleet
        if fleet.cluster is None:
            return DistributedSession(placement())
        restart = None if self.settings.on_failure == "raise" else self._restart
        return LastingSession(
            lambda: DistributedSession(placement(), fleet.cluster), fleet.restart_servers, restart, fleet.note_progress
        )

    def _restart(self, error: NodeLostError) -> None:
        self.fleet.restart(error)
        self.settings = replace(self.settings, resource_spec=self.fleet.spec)

    def _placement(self, item: GraphItem) -> Placement:
        strategy = self.compile_strategy(item)
        if self.trained is not None:
            # The machines are others than when the training began.
            self._running = replace(self._running, trained=strategy)
        return place(item, strategy, self.settings.share_memory, self._tasks)

    def _placement_without_training(self) -> Placement:
        return inference(checks.replicas(self.settings.resource_spec), self._tasks)

    @property
    def _tasks(self) -> Tasks:
        cluster = self.fleet.cluster
        return Tasks(cluster.job, cluster.addresses) if cluster is not None else Tasks()


def _fleet(settings: Settings) -> Fleet:
    """The machines that these settings name; a process that is not the chief becomes an agent here."""
    become_agent_unless_chief(settings.resource_spec)
    return Fleet(*settings.of_the_cluster)
