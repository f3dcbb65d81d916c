"""Measure where the time of a training step goes.

In: a `DistributedModel`, and data or the last `fit`. Out: a `TimeReport`. A few steps train with Keras's own `fit`. Of
the last of them, each operation is followed. Fewer steps are measured if they are slow, and the log says how far it is.
Afterwards the model has the state that it had before.
`DistributedModel.explain` calls this module, and has an example.
"""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from autodist_core.errors import amount
from autodist_core.log import Pace, log
from autodist_core.reports.comparison import restore, values_of
from autodist_core.reports.time_report import TimeReport, time_report
from autodist_core.runtime import Timings
from autodist_core.training import Entry
from autodist_keras import checks
from autodist_keras.capture.hooks import put_back
from autodist_keras.capture.optimizers import optimizers_of
from autodist_keras.capture.variables import ModelVariables
from autodist_keras.reports.own_fit import EPOCHS, call_fit, named_arguments, of_batches, takes
from autodist_keras.training.batches import kind_of_data
from autodist_keras.training.data_ways import FIT, Way

_GONE = object()


class LastFit:
    """The data of a `fit`, and what else its batches depend on, for `explain()` without arguments.

    The data is not kept alive here, so that memory is free when the user lets go of it.

    >>> import numpy as np
    >>> x = np.ones((4, 3))
    >>> fit = LastFit(keras.Sequential(), (x,), {"batch_size": 2, "epochs": 5})
    >>> fit.arguments["x"] is x, fit.arguments["batch_size"]
    (True, 2)
    >>> del x
    >>> fit.arguments is None
    True
    """

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = keras.tree.map_structure(_reference, of_batches(model, **named_arguments(model, args, kwargs)))

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of `fit` that give its batches again; None if a part of the data is gone."""
        found = keras.tree.map_structure(lambda each: each(), self._given)
        return None if any(each is _GONE for each in keras.tree.flatten(found)) else found


def _reference(value: Any) -> Callable[[], Any]:
    """A reference that does not keep a value alive, where Python can make one."""
    try:
        reference = weakref.ref(value)
    except TypeError:
        return lambda: value
    return lambda: _GONE if (found := reference()) is None else found


_WARM_UP, _WARM_UP_SECONDS, _LONGEST_WARM_UP = 3, 0.5, 30
"""The least rounds of Keras's loop before the first that counts, the least seconds that they take, and the most rounds.
The first one captures the step. TensorFlow tunes data pipelines while they run."""
_FOLLOWED = 6
"""The most rounds of which each operation is followed."""
_LEAST = 4
"""The fewest steps of which the times are reliable."""
_SLOW_WARM_UP, _SLOW_LEAST, _SLOW_FOLLOWED = 2, 2, 1
"""The fewest rounds of warming up, of measuring and of following, where these seconds have gone by meanwhile:"""
WARM_UP_ENDS, MEASURING_ENDS, FOLLOWING_ENDS = 5.0, 30.0, 10.0
"""The seconds after which the rounds of a kind end, though fewer than usual. What another program does on the
processors counts little in a step of seconds."""


class _Measuring(keras.callbacks.Callback):
    """Measure rounds of Keras's loop after a warm-up, and end the `fit`."""

    def __init__(self, distributed: Any, steps: int, once: bool) -> None:
        super().__init__()
        self._distributed = distributed
        self._before_fit = _state_of(distributed.model)
        self._start: tuple[tuple[Entry, ...], dict[str, np.ndarray], Any] | None = None
        self._once = once
        """Whether the data can be gone through once only."""
        self.timings = Timings()
        self.examples = 0
        self.loop_ended = 0.0
        self._driver = distributed._driver
        self._rounds = steps
        self._round = self._at_begin = 0
        self._is_warm = False
        self._before = 0
        self._pace = Pace()
        self._kind = Pace()
        """How long the rounds of the present kind take: of warming up, of measuring, of following."""
        self.measured = 0
        """How many rounds were measured as they are."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._driver.before_next_step(self._keep)

    def _keep(self) -> None:
        """Keep the state before the first step, in which all variables exist; of older ones, that before the `fit`."""
        entries = _entries_of(self.model)
        older = {entry.spec.name: self._before_fit.get(id(entry.tf_variable)) for entry in entries}
        values = values_of(entries) | {name: value for name, value in older.items() if value is not None}
        self._start = entries, values, self._distributed.compressor_state()

    def put_back(self) -> None:
        """Give the variables and the compressors the state from before."""
        if self._start is not None:
            entries, values, compressors = self._start
            restore(entries, values)
            self._distributed.set_compressor_state(compressors)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._at_begin = self._round

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._round += 1
        if self._pace.is_due():
            log.info("explain: %s done, %.0f s so far", amount(self._round, "step"), self._pace.seconds)
        if self._round == 1:
            self._kind = Pace()  # capturing, and starting machines, is no sign of slow steps
        if not self._is_warm:
            early = self._kind.seconds < _WARM_UP_SECONDS and self._round < _LONGEST_WARM_UP
            least = _SLOW_WARM_UP if self._kind.seconds > WARM_UP_ENDS else _WARM_UP
            if self._round < least or early:
                return
            _require_in_step(self._driver)
            self._is_warm, self._before = True, self._driver.examples
            self._driver.measure(self.timings)
            self._kind = Pace()
        self.timings.mark()
        measured = len(self.timings.calls)
        if not self.timings.follows_operations:
            if measured == self._rounds or self._is_over(measured, _SLOW_LEAST, MEASURING_ENDS):
                self.examples, self.measured = self._driver.examples - self._before, measured
                self.timings.follows_operations = True
                self._kind = Pace()
            return
        followed = measured - self.measured
        if followed == min(self._rounds, _FOLLOWED) + 1 or self._is_over(followed, _SLOW_FOLLOWED, FOLLOWING_ENDS):
            self.model.stop_training = True

    def _is_over(self, rounds: int, least: int, seconds: float) -> bool:
        return rounds >= least and self._kind.seconds > seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._once or self._round == self._at_begin:
            # The data has no batches any more. Keras would repeat the batch of a generator that it has looked at.
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        self._driver.measure(None)
        self.loop_ended = time.perf_counter()


def explain(distributed: Any, last: LastFit | None, given: Mapping[str, Any], steps: int) -> TimeReport:
    """Measure some training steps, and put the state back. `DistributedModel.explain` has an example."""
    model, driver = distributed.model, distributed._driver
    driver.require_idle("explain")
    _require_steps(steps)
    checks.compiled(model)
    checks.optimizer(model)
    if not takes(model, "callbacks"):
        raise ValueError(
            f"explain(): a callback measures the steps, and {type(model).__name__}.fit takes no callbacks. Let it take "
            "them, and pass them to Keras's fit."
        )
    arguments = given or _of_last(last)
    history, ways = getattr(model, "history", None), driver.data.ways
    measuring = _Measuring(distributed, steps, _kind(arguments) == "generator")
    try:
        with put_back(model, "history", "stop_training"):
            # The data takes the way of the last fit.
            once = FIT in ways and ways[FIT].once
            driver.data.ways = {}
            with driver.looping("fit", (), {**arguments, "epochs": EPOCHS if once else 0}):
                call_fit(model, arguments, callbacks=[measuring])
            way = driver.data.ways.get(FIT, Way()).text
            home = time.perf_counter() - measuring.loop_ended
    finally:
        driver.data.ways = ways
        driver.measure(None)
        driver.before_next_step(None)
        measuring.put_back()
    plain = [run for call in measuring.timings.calls for run in call.runs if not run.operations]
    followed = any(run.operations for call in measuring.timings.calls for run in call.runs)
    if not followed:
        raise ValueError(
            f"explain(): the data ended after {amount(len(plain), 'measured step')}. Pass data that can be gone "
            "through again, such as arrays, a tf.data.Dataset or a keras.utils.PyDataset, or fewer steps."
        )
    return time_report(
        measuring.timings, measuring.examples / len(plain), home, _steps_of(history) or len(plain),
        _kind(arguments), driver.captured.item, driver.training.trained, driver.settings.resource_spec,
        tuple(_notes(measuring.measured, steps, way)),
    )


def _notes(measured: int, steps: int, way: str) -> Iterator[str]:
    if measured < steps:
        yield f"a step takes long, so {measured} of {amount(steps, 'step')} were measured"
    if way:
        yield f"the data of the measured steps: {way}"


def _entries_of(model: Any) -> tuple[Entry, ...]:
    return tuple(ModelVariables(model, optimizers_of(model)).entries)


def _state_of(model: Any) -> dict[int, np.ndarray]:
    """The values of the variables that exist already, by the identity of the variable."""
    entries = _entries_of(model) if model.built else ()
    values = values_of(entries)
    return {id(entry.tf_variable): values[entry.spec.name] for entry in entries}


def _require_steps(steps: Any) -> None:
    if type(steps) is not int or steps < _LEAST:
        raise ValueError(f"explain(steps={steps!r}): expected a whole number of steps, at least {_LEAST}.")


def _of_last(last: LastFit | None) -> Mapping[str, Any]:
    if last is None:
        raise ValueError("explain() measures steps of the last fit, and there was none: explain(x, y, batch_size=...).")
    arguments = last.arguments
    if arguments is None:
        raise ValueError(
            "explain() measures steps of the last fit, and your program has let go of the data of that fit. Keep it "
            "in a variable, or pass it: explain(x, y, batch_size=...)."
        )
    return arguments


def _require_in_step(driver: Any) -> None:
    if driver.training.state.session.placement.loose is not None:
        raise ValueError(
            "explain(): with staleness or sync=False the replicas do not wait for each other, so there is no common "
            "step whose time could be divided. Measure with sync=True and staleness=0: what computes and travels is "
            "the same."
        )


def _steps_of(history: Any) -> int:
    """The number of steps of the last `fit`; 0 if it is not known."""
    epochs = len(getattr(history, "epoch", ()))
    return epochs * ((getattr(history, "params", None) or {}).get("steps") or 0)


def _kind(arguments: Mapping[str, Any]) -> str:
    return next((kind for kind in map(kind_of_data, arguments.values()) if kind != "arrays"), "arrays")
