"""Run Keras's own loops on a distributed session.

In: a model, its settings, and calls of `fit` and its siblings from `model.py`. Out: Keras's loops, whose step functions
(`step_functions.py`) run in a `Training`, which has the session and its `TrainingState`. While a call runs, Keras finds
these step functions on the model. The first batch captures a step, and the captured step opens a session. After the
call the model has the trained state and Keras's own functions again. Session and steps stay for the next call.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from autodist_core.errors import SessionError
from autodist_core.interrupts import ignore_repeated_interrupts
from autodist_core.reports.step_plan import say_inexact
from autodist_core.runtime import Timings
from autodist_core.training import Settings, Training
from autodist_keras import checks
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.tracing import CapturedStep
from autodist_keras.seams import LOOP_ASKS
from autodist_keras.training import identities
from autodist_keras.training.batches import read_batch
from autodist_keras.training.data_ways import DataWays
from autodist_keras.training.exclusive import claimed, in_own_thread, owner_of
from autodist_keras.training.step_functions import StepFunction, on_batches, on_iterator

MODES = ("train", "test", "predict")
_CALLS = {"test": "evaluate and validation", "predict": "predict"}


class Driver:
    """Runs a model under its settings: with captured steps, the session in which they run, and a cluster if needed.

    >>> import keras
    >>> import numpy as np
    >>> from autodist_core.resource_spec import ResourceSpec
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
    >>> model.compile("sgd", "mse")
    >>> driver = Driver(model, Settings(ResourceSpec.local(cpus=2), "PS"))
    >>> with driver.running("fit"):
    ...     history = model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    >>> [gradient.variable for gradient in driver.captured.item.gradients], driver.training.state is None
    (['dense/kernel', 'dense/bias'], False)
    >>> driver.close()
    """

    def __init__(self, model: Any, settings: Settings) -> None:
        self.model = model
        self.training = Training(settings, lambda: checks.batched(model, self.settings.replicas))
        self._functions: dict[str, StepFunction] = {}
        """The step functions by mode."""
        self._compiled_as: identities.Identity | None = None
        self._variables_as: identities.Identity | None = None
        """The model's variables at the end of the last call. A call may build layers."""
        self._before_next: dict[str, Callable[[], None] | None] = {}
        """What runs before the next step, by mode, for functions that Keras has not asked for yet."""
        self._said: set[str] = set()
        """The notes on differences from one device that were logged already."""
        self._left: dict[str, Any] = {}
        """The functions that the model has had since the last call, by mode."""
        self.data_by_rows: bool | None = None
        """Whether the position from which a `fit` goes on is one in row numbers; None if it starts anew."""
        self.data = DataWays(
            model, lambda: self.settings.resource_spec, self.training.say_once, lambda: self.data_by_rows
        )
        """How the data of the loops gets to the replicas."""
        self._asked = False
        """Whether Keras asked for a step function in the current call."""

    @property
    def settings(self) -> Settings:
        """The settings. `change` sets others; the resource spec changes when a node is left out after its loss."""
        return self.training.settings

    def change(self, settings: Settings) -> None:
        """Go on with other settings in a new session; on new machines if settings about machines changed."""
        self.require_idle()
        self.training.change(settings)
        self._forget()

    def _forget(self) -> None:
        """Forget every captured step, and what was said of them."""
        self._functions, self._compiled_as, self._said = {}, None, set()

    def close(self) -> None:
        """Free the devices and machines. The next call opens a new session."""
        self.require_idle()
        self._forget()
        self.training.close()

    @property
    def captured(self) -> CapturedStep | None:
        """The training step, if one was captured."""
        return self.captured_in("train")

    def captured_in(self, mode: str) -> CapturedStep | None:
        """The step of a mode, if one was captured."""
        function = self._functions.get(mode)
        return function.captured if function is not None else None

    def before_next_step(self, run: Callable[[], None] | None, mode: str = "train") -> None:
        """Run this once in the current `fit`: when the next step of a mode is captured, and before it runs."""
        if mode in self._functions:
            self._functions[mode].before_next = run
        else:
            self._before_next[mode] = run

    def measure(self, timings: Timings | None) -> None:
        """Measure each training step from now on; None ends this. At least one step must have run in this call."""
        if "train" in self._functions:
            self._functions["train"].timings = timings
        if self.training.state is not None:
            self.training.state.session.measure(timings)

    @property
    def examples(self) -> int:
        """How many examples training steps have had; it only grows, until settings change."""
        return self._functions["train"].examples if "train" in self._functions else 0

    @property
    def steps(self) -> int:
        """How many training steps there were; it only grows, until settings change."""
        return self._functions["train"].steps if "train" in self._functions else 0

    def captured_for(self, data: Any, keep: bool = False, same_size: bool = False) -> CapturedStep:
        """The training step, captured for a batch as `train_step` gets it; nothing runs.

        With `keep`, the `fit` that runs uses it for its first batch. `same_size` says that all batches have as many
        examples.
        """
        checks.compiled(self.model)
        checks.optimizer(self.model)
        checks.without_strategy(self.model)
        checks.graph(self.model)
        if refusal := checks.step_function(self.model, "train"):
            raise ValueError(refusal)
        batch = read_batch(data)
        running = self._functions.get("train") if keep else None
        return (running or self._function("train")).captured_for(batch, keep, same_size)

    @contextmanager
    def drawing_as_one(self) -> Iterator[None]:
        """Let the replicas draw one device's random numbers, as far as they can, in training steps of this block."""
        others = {mode: each for mode, each in self._functions.items() if mode != "train"}
        with hook(self.training, "draws_as_one", True), hook(self, "_functions", others):
            yield

    # A call ------------------------------------------------------------------------------------------------------

    def require_idle(self, what: str = "compile, close or change its settings") -> None:
        """Raise a SessionError while a call runs; `what` names the action that must wait for the end of the call."""
        if owner_of(self.model) is self:
            raise SessionError(f"this DistributedModel is training: {what} afterwards.")

    @contextmanager
    def running(self, loop: str | None) -> Iterator[None]:
        """Let Keras call the project's step functions inside this block. Before and after it, the model is plain Keras.

        `loop` names the method of Keras that runs in the block. If that method ran without the project's functions, a
        SeamError says so. None stands for whatever methods the user calls, as in `DistributedModel.one_call`.
        """
        with claimed(self.model, self) as outermost:
            if outermost:
                checks.without_strategy(self.model)
                with ignore_repeated_interrupts(), self._own_functions():
                    self._asked = False
                    yield
                    if loop is not None and not self._asked and not checks.is_own(self.model, loop):
                        raise LOOP_ASKS.error(f"{loop} ran on one device, by Keras alone")
            else:
                yield

    @contextmanager
    def looping(self, loop: str, args: Any, kwargs: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """`running` for a call of a loop. The value is what Keras's loop is called with."""
        with self.running(loop), self.data.loop(loop, args, kwargs) as given:
            if loop == "fit" and "train" in self._functions:
                self._functions["train"].say_again()
            yield given

    @contextmanager
    def _own_functions(self) -> Iterator[None]:
        # The callbacks run in the opposite order; all of them run, even if one raises.
        with ExitStack() as ending:
            self._drop_what_is_outdated()
            ending.callback(self._close_if_lost)
            ending.callback(self._note_variables)
            ending.callback(self._drop_data)
            ending.enter_context(self._functions_put_back())
            ending.callback(self.training.release)
            ending.callback(self.training.release_kept)
            ending.callback(self.training.pull)
            self.training.resume()
            for mode in MODES:
                ending.enter_context(hook(self.model, f"make_{mode}_function", self._maker(mode)))
            ending.enter_context(self.data.call())
            # Keras's `compile` would take the running step function away.
            ending.enter_context(hook(self.model, "compile", lambda *_, **__: self.require_idle()))
            yield

    def _drop_what_is_outdated(self) -> None:
        identity = identities.of_step(self.model)
        replaced = self._variables_as is not None and identities.of_variables(self.model) != self._variables_as
        ended = self.training.has_ended or self.training.is_lost
        if identity != self._compiled_as or replaced or ended:
            self._forget()
            self.training.close_session()
            self._compiled_as = identity
        for mode, step in self._functions.items():
            # Somebody called `make_train_function(force=True)`, or set the function to None: Keras would trace anew.
            if getattr(self.model, f"{mode}_function") is not self._left.get(mode):
                step.trace_anew(getattr(self.model, f"{mode}_step"))

    @contextmanager
    def _functions_put_back(self) -> Iterator[None]:
        """Give the model Keras's own functions back afterwards; none, if it was compiled in the meantime.

        After a call of Keras the model has a function that is not None. So it has here: a user sets it to None to have
        the step traced anew. Keras traces such a function when it is first called.
        """
        before = {mode: getattr(self.model, f"{mode}_function") for mode in MODES}
        try:
            yield
        finally:
            same = identities.of_step(self.model) == self._compiled_as
            for mode, function in before.items():
                object.__setattr__(self.model, f"{mode}_function", function if same else None)
                if same and function is None and mode in self._functions:
                    getattr(self.model, f"make_{mode}_function")()
                self._left[mode] = getattr(self.model, f"{mode}_function")

    def _drop_data(self) -> None:
        for step in self._functions.values():
            step.drop_data()

    def _note_variables(self) -> None:
        self._variables_as = identities.of_variables(self.model)

    def _close_if_lost(self) -> None:
        if self.training.is_lost:
            self._forget()
            self.training.close()

    def _maker(self, mode: str) -> Callable[..., None]:
        refusal = checks.step_function(self.model, mode)

        def make(force: bool = False) -> None:
            self._asked = True
            if refusal:
                raise ValueError(refusal)
            checks.graph(self.model)
            function = self._functions.get(mode)
            if function is None:
                if mode == "train":
                    checks.optimizer(self.model)
                    checks.say_if_single(self.settings.resource_spec)
                function = self._functions[mode] = self._function(mode)
                function.before_next = self._before_next.pop(mode, None)
            elif force:
                function.trace_anew(getattr(self.model, f"{mode}_step"))
            run = on_batches(function) if mode == "predict" else on_iterator(function, self.model)
            object.__setattr__(self.model, f"{mode}_function", in_own_thread(self.model, run))

        return in_own_thread(self.model, make)

    def _function(self, mode: str) -> StepFunction:
        step = getattr(self.model, f"{mode}_step")
        made = StepFunction(self.model, step, mode == "predict", self.training, partial(self._say, mode))
        made.drops_aside = self.data.has_arrays_only
        return made

    def _say(self, mode: str, captured: CapturedStep) -> None:
        """Log why a step gives other numbers than one device: each reason once, in whichever step it comes first."""
        trained = *captured.notes.trained, *captured.notes.unknown
        notes = [note for note in (*trained, *captured.notes.reported) if _unnumbered(note) not in self._said]
        name = self.model.name if mode == "train" else f"{self.model.name}, in {_CALLS[mode]}"
        # `verify` runs training steps, and compares variables.
        verified = mode == "train" and not {*trained}.isdisjoint(notes)
        more = "verify() compares with one device" if verified else ""
        if self.settings.replicas > 1 and say_inexact(name, notes, more):
            self._said.update(map(_unnumbered, notes))


def _unnumbered(note: str) -> str:
    """A note without the names of operations: each trace numbers these anew."""
    return re.sub(r" \([^)]*\)", "", note)
