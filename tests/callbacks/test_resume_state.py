"""A program that was killed is started again: which variables and random numbers are state, and which of them is which.
"""

import random
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from autodist_keras.callbacks import Resume
from autodist_keras.callbacks.resume.callback_state import CallbackStates
from tests.support.compare import Trained, assert_equally_trained, assert_same
from tests.support.ended import kill, killed
from tests.support.made_data import Batches
from tests.support.models import stacked
from tests.support.training import distributed, run, seeded, trained

STEPS = 5
"""Batches of an epoch."""


def data() -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(3)
    return draws.normal(size=(4 * STEPS, 3)), draws.normal(size=(4 * STEPS, 1))


def train(folder: Path | None, case: Any, *last: Any, source: Any = None, then: Any = None, **options: Any) -> Trained:
    """One start of a program. `case` makes a model and its callbacks; a callback may have a number `found`."""
    made: list[Any] = []

    def build() -> keras.Model:
        model, *callbacks = case()
        made.extend(callbacks)
        return model

    def program(front: Any, model: keras.Model) -> dict[str, Any]:
        x, y = data()
        resume = [] if folder is None else [Resume(folder, every=1)]
        given = {"x": x, "y": y, "batch_size": 4} if source is None else {"x": source()}
        arguments = {**given, "epochs": 2, "verbose": 0, **options}
        history = front.fit(**arguments, callbacks=[*resume, *made, *last])
        found = [each.found for each in made if hasattr(each, "found")]
        return {**history.history, "found": found, "then": then and then(front)}

    with distributed(seeded(build), replicas=1) as front:
        return run(program, front, front.model)


def assert_resumed(tmp_path: Path, case: Any, steps: int = 7, **options: Any) -> None:
    """Bit for bit: a training that is ended before a step and started again, and one that is not."""
    expected = train(None, case, **options)
    killed(train, tmp_path, case, kill(steps), **options)
    assert_equally_trained(expected, train(tmp_path, case, **options), tolerance=0.0)


class Sets(keras.callbacks.Callback):
    """Gives variables values that depend on the number of the step."""

    def __init__(self, variables: list[Any], moment: str) -> None:
        super().__init__()
        self._set = [variable.assign for variable in variables]  # state of the training, and none of the callback
        setattr(self, moment, self._on)

    def _on(self, batch: int, logs: Any = None) -> None:
        for number, assign in enumerate(self._set):
            assign(float(self.model.optimizer.iterations) * (number + 1) / 50.0)


def of_variables(moment: str) -> tuple[Any, ...]:
    """Four variables that are not the model's, which its loss reads. A callback of the moment sets them."""
    variables = [keras.Variable(0.0, name="weight") for _ in range(4)]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def loss(y: Any, found: Any) -> Any:
        mean = keras.ops.mean
        parts = [mean((y - found) ** 2), mean(found), mean(found**3), mean(keras.ops.abs(found))]
        return parts[0] + sum(variable * part for variable, part in zip(variables, parts, strict=True))

    model.compile("adam", loss)
    return model, Sets(variables, moment)


@pytest.mark.quick("on_train_batch_begin")
@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_train_batch_begin"])
def test_variables_of_one_name_that_the_loss_reads_keep_their_order(moment: str, tmp_path: Path):
    """Also what a callback gives them before the first step stays."""
    assert_resumed(tmp_path, lambda: of_variables(moment))


def built_late() -> tuple[Any, ...]:
    """A layer that exists before the first step stands behind one of its shape that does not."""
    early = keras.layers.Dense(3, activation="tanh")
    early.build((None, 3))
    return (stacked(keras.layers.Dense(3, activation="tanh"), early, keras.layers.Dense(1), optimizer="adam"),)


def test_the_step_is_captured_once(tmp_path: Path):
    """The capture that makes the variables for a saved state is that of the first step."""
    calls: list[int] = []

    def case() -> tuple[Any, ...]:
        def loss(y: Any, found: Any) -> Any:
            calls.append(1)
            return keras.ops.mean((y - found) ** 2)

        return (stacked(keras.Input((3,)), keras.layers.Dense(1), loss=loss),)

    killed(train, tmp_path, case, kill(7))
    first = len(calls)
    train(tmp_path, case)
    assert len(calls) == 2 * first


def _of_open_sizes() -> Batches:
    """Batches of which Keras does not know how wide they are."""
    def make(index: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.random.default_rng(index).normal(size=(4, 2 + index % 2, 3))
        return x, x[..., :1]

    return Batches(make, STEPS)


@pytest.mark.quick("arrays")
@pytest.mark.parametrize("source", [None, _of_open_sizes], ids=["arrays", "open sizes"])
def test_a_layer_that_is_built_late_gets_its_own_values(source: Any, tmp_path: Path):
    assert_resumed(tmp_path, built_late, source=source)


def test_the_metrics_after_a_complete_training_that_is_not_run_again(tmp_path: Path, monkeypatch):
    """The next `evaluate` begins with metrics of its own. Variables that are not the model's have their values, too."""
    from autodist_keras.callbacks.resume import resumable_fit

    def case() -> tuple[Any, ...]:
        model, sets = of_variables("on_train_batch_end")
        model.compile("sgd", model.loss, metrics=["mae"])
        return model, sets

    def then(front: Any) -> Any:
        return front.evaluate(np.ones((4, 3)), np.ones((4, 1)), verbose=0)

    first = train(tmp_path, case, then=then)
    monkeypatch.setattr(resumable_fit, "_ended", set())  # another process
    assert_equally_trained(first, train(tmp_path, case, then=then), tolerance=0.0)


class Draws(keras.callbacks.Callback):
    """Draws a number with `keras.random` at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found.append(float(keras.random.uniform(())))


class DrawsInValidation(keras.layers.Layer):
    """A layer that adds noise where no step trains."""

    def __init__(self, *noise: Any) -> None:
        super().__init__()
        self._noise = noise

    def call(self, x: Any, training: bool = False) -> Any:
        return x if training else x + sum(draw(keras.ops.shape(x)) for draw in self._noise)


def test_draws_that_no_training_step_makes(tmp_path: Path):
    """In a validation and in a callback; without a seed generator, and with one that is not the model's."""
    def case() -> tuple[Any, ...]:
        seed = keras.random.SeedGenerator(7)
        noise = DrawsInValidation(keras.random.normal, lambda shape: keras.random.normal(shape, seed=seed))
        model = stacked(keras.Input((3,)), noise, keras.layers.Dense(1), optimizer="adam")
        assert not noise.variables
        return model, Draws()

    assert_resumed(tmp_path, case, validation_split=0.2)


class Collects(keras.callbacks.Callback):
    """Keeps what it has seen of steps in values of many kinds."""

    def __init__(self, seen: list[float]) -> None:
        super().__init__()
        self.swapped, self.long, self.seen = np.zeros(2, ">f8"), np.longdouble(0), {"losses": seen}
        self.since, self.itself, self.of_program = np.timedelta64(0, "s"), [0], seen
        self.itself.append(self.itself)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.swapped += logs["loss"]
        self.long += np.longdouble(logs["loss"])
        self.since += np.timedelta64(3, "s")
        self.seen["losses"].append(logs["loss"])

    @property
    def found(self) -> list[Any]:
        seconds = self.since / np.timedelta64(1, "s")
        return [self.swapped, self.swapped.dtype.str == ">f8", self.long, seconds, list(self.of_program)]


def test_values_of_many_kinds_that_callbacks_keep(tmp_path: Path, caplog):
    """The program has a list that the callback has, too: it is filled."""
    def case() -> tuple[Any, ...]:
        return stacked(keras.Input((3,)), keras.layers.Dense(1), optimizer="adam"), Collects([])

    assert_resumed(tmp_path, case)
    assert "of callback Collects, itself is not saved" in caplog.text


class Halves:
    """A schedule with a state: each call halves the rate."""

    def __init__(self) -> None:
        self.rate, self.draws = 0.1, random.Random(3)

    def __call__(self, epoch: int, rate: float) -> float:
        self.rate /= 2.0
        self.draws.random()
        return self.rate


def test_functions_that_hold_values_are_named(caplog):
    steps = 0

    def count(batch: int, logs: Any) -> None:
        nonlocal steps
        steps += 1

    plain = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    rates = keras.callbacks.LearningRateScheduler(Halves())
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=count), plain, rates]
    for callback in callbacks:
        callback.set_model(stacked(keras.Input((3,)), keras.layers.Dense(1)))
        assert not CallbackStates([callback]).get([callback]).popitem()[1]
    assert "of callback LambdaCallback, on_train_batch_end is not saved" in caplog.text
    assert "of callback LearningRateScheduler, schedule is not saved" in caplog.text
    assert "on_epoch_end" not in caplog.text


def test_averages_that_a_callback_swaps_in_a_longer_training(tmp_path: Path):
    """The complete training goes on as by a second `fit`."""
    def case() -> tuple[Any, ...]:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5), "mse")
        return model, keras.callbacks.SwapEMAWeights(swap_on_epoch=True)

    model, swap = seeded(case)
    for first, epochs in ((0, 2), (2, 4)):
        model.fit(*data(), batch_size=4, shuffle=False, initial_epoch=first, epochs=epochs, verbose=0, callbacks=[swap])
    train(tmp_path, case, epochs=2, shuffle=False)
    assert_same(trained(model).state, train(tmp_path, case, epochs=4, shuffle=False).state, tolerance=0.0)
