"""Run Keras's own loops on a distributed session.

In: a model, its settings, and calls of `fit` and its siblings from `model.py`. Out: Keras's loops, whose step functions
(`step_functions.py`) run on a session (`sessions.py`) and its `State`. While a call runs, Keras finds these step
functions on the model. The first batch captures a step, and the captured step opens a session. After the call the model
has the trained state and Keras's own functions again. Session and steps stay for the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from autodist_core.errors import SessionError
from autodist_core.interrupts import defer_interrupt, ignore_repeated_interrupts
from autodist_core.kernel import Placement
from autodist_core.runtime import Condition
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.training import Sessions, Settings, State
from autodist_keras import checks
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.tracing import CapturedStep
from autodist_keras.seams import LOOP_ASKS
from autodist_keras.training.batches import read_batch
from autodist_keras.training.compressor_state import CompressorState
from autodist_keras.training.exclusive import claimed, in_own_thread, is_claimed
from autodist_keras.training.step_functions import StepFunction, on_batches, on_iterator

MODES = ("train", "test", "predict")


@dataclass(frozen=True)
class Running:
    """The parts of one session. The driver replaces all of them in one assignment, so a refusal changes nothing."""

    functions: Mapping[str, StepFunction] = field(default_factory=dict)
    """The step functions by mode."""
    state: State | None = None
    """The session and the model as one state; None until the first step is captured."""
    trained: CompiledStrategy | None = None
    """The strategy of the training; None in a session that trains nothing."""


class Driver:
    """Runs a model under its settings: with captured steps, the session in which they run, and a cluster if needed."""

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model = model
        self._sessions = Sessions(settings)
        self._running = Running()
        self._compiled_as: checks.Identity | None = None
        self._compressors: CompressorState | None = None
        self._asked = False
        """Whether Keras asked for a step function in the current call."""

    @property
    def settings(self) -> Settings:
        """The settings. `change` sets others; the resource spec changes when a node is left out after its loss."""
        return self._sessions.settings

    def change(self, settings: Settings) -> None:
        """Go on with other settings in a new session; on new machines if settings about machines changed."""
        self.require_idle()
        before, after = self._sessions, self._sessions.changed(settings)
        with ignore_repeated_interrupts():
            self._drop()
        self._sessions = after
        if after.fleet is not before.fleet:
            before.fleet.close()

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
        """Free the devices and machines. The next call opens a new session."""
        self.require_idle()
        with ignore_repeated_interrupts():
            try:
                self._drop()
            finally:
                self._sessions.fleet.close()

    # What runs ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """The session and the model as one state, where a session is open."""
        return self._running.state

    @property
    def trained(self) -> CompiledStrategy | None:
        """The strategy of the current training."""
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
        """The strategy for a step on these devices."""
        return self._sessions.compile_strategy(item)

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

    # A call ------------------------------------------------------------------------------------------------------

    def require_idle(self, what: str = "compile, close or change its settings") -> None:
        """Raise a SessionError while a call runs; `what` names the action that must wait for the end of the call."""
        if is_claimed(self.model, self):
            raise SessionError(f"this DistributedModel is training: {what} afterwards.")

    @contextmanager
    def running(self, loop: str) -> Iterator[None]:
        """Let Keras call the project's step functions inside this block. Before and after it, the model is plain Keras.

        `loop` names the method of Keras that runs in the block. If that method ran without the project's functions, a
        SeamError says so.
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
        # The callbacks run in the opposite order; all of them run, even if one raises.
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
            # Keras's `compile` would take the running step function away.
            ending.enter_context(hook(self.model, "compile", self._refuse_compile))
            yield

    def _refuse_compile(self, *_: Any, **__: Any) -> None:
        self.require_idle()

    def _drop_what_is_outdated(self) -> None:
        identity = checks.identity_of_compile(self.model)
        ended = self.state is not None and self.state.session.condition is not Condition.READY
        if identity != self._compiled_as or ended or self._sessions.fleet.lost:
            self._drop()
            self._compiled_as = identity

    @contextmanager
    def _functions_put_back(self) -> Iterator[None]:
        """Give the model Keras's own functions back afterwards; none, if it was compiled in the meantime."""
        before = {mode: getattr(self.model, f"{mode}_function") for mode in MODES}
        try:
            yield
        finally:
            same = checks.identity_of_compile(self.model) == self._compiled_as
            for mode, function in before.items():
                object.__setattr__(self.model, f"{mode}_function", function if same else None)

    def _pull(self) -> None:
        """Bring the whole state back to the model, even if Ctrl-C is pressed during this."""
        if self.state is not None:
            try:
                self._settle_and_pull(self.state)
            except KeyboardInterrupt:
                self._settle_and_pull(self.state)
                raise

    @staticmethod
    def _settle_and_pull(state: State) -> None:
        try:
            state.settle()
        finally:
            # Loose replicas may have failed. The state is pulled all the same.
            state.pull_all(again=state.session.condition is Condition.LOST)

    def _release(self) -> None:
        if self.state is not None:
            self.state.release()

    def _close_if_lost(self) -> None:
        # After the loss of a node, the other nodes have nothing to do any more.
        if self._is_lost:
            self._drop()
            self._sessions.fleet.close()

    @property
    def _is_lost(self) -> bool:
        """Whether a node is lost, and the session with it."""
        return self._sessions.fleet.lost or (self.state is not None and self.state.session.condition is Condition.LOST)

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
        """The state in which a captured step runs: the state of the current training, if there is one."""
        self._sessions.start_machines()
        checks.batched(self.model, self.settings.replicas)
        if item.gradients and self.trained is None:
            self._begin_training(item)
        elif self.state is None:
            session = self._sessions.open(self._sessions.placement_without_training)
            self._running = replace(self._running, state=State(session))
        assert self.state is not None
        return self.state

    def _begin_training(self, item: GraphItem) -> None:
        """Make a session for a training, and replace a session that trains nothing.

        Every step that can be refused comes first. A refusal therefore changes nothing, and the next call is refused
        too.
        """
        trained = self.compile_strategy(item)
        session, before = self._sessions.open(lambda: self._placement(item)), self.state
        try:
            if self._compressors is not None:
                session.load_added(self._compressors.for_strategy(trained.id))
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

    def _placement(self, item: GraphItem) -> Placement:
        strategy = self.compile_strategy(item)
        if self.trained is not None:
            # After a restart, the machines may be others than at the beginning of the training.
            self._running = replace(self._running, trained=strategy)
        return self._sessions.placement(item, strategy)
