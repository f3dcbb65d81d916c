"""What counts as the same program when a training is started again, and what does not."""

import itertools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from autodist_core.errors import SessionError
from autodist_keras.callbacks import Resume
from tests.support.compare import assert_same, in_order
from tests.support.ended import Killed, kill, killed
from tests.support.models import ready
from tests.support.training import distributed


def nested() -> keras.Model:
    """A model in a model. Each one that is made gets names with other numbers."""
    keras.utils.set_random_seed(5)
    inputs, outer = keras.Input((3,)), keras.Input((3,))
    inner = keras.Model(inputs, keras.layers.Dense(4, activation="tanh")(inputs))
    return ready(keras.Model(outer, keras.layers.Dense(1)(inner(outer))), "adam", "mse")


def fit(model: keras.Model, folder: Path, *callbacks: Any, every: int = 1, **options: Any) -> dict[str, Any]:
    draws = np.random.default_rng(3)
    x, y = draws.normal(size=(8, 3)), draws.integers(0, 2, size=(8, 1))
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    with distributed(model, replicas=1) as front:
        arguments = {"batch_size": 4, "epochs": 3, "verbose": 0, **options}
        front.fit(x, y, callbacks=[Resume(folder, every), rate, *callbacks], **arguments)
    return in_order(model.weights, model.optimizer.variables)


@pytest.mark.parametrize("cells", ["one", "all"])
def test_a_notebook_runs_its_cells_again(cells: str, tmp_path: Path):
    """The cell with `fit` alone, after a callback has changed the learning rate; and all cells."""
    expected, model = fit(nested(), tmp_path / "whole"), nested()
    killed(fit, model, tmp_path / "killed", kill(3))
    found = fit(model if cells == "one" else nested(), tmp_path / "killed")
    assert_same(expected, found, tolerance=0.0)


def test_the_same_in_other_words_is_the_same(tmp_path: Path):
    with pytest.raises(Killed):
        fit(nested(), tmp_path, kill(3), class_weight={0: 1.0, 1: 2.0}, steps_per_epoch=np.int64(2), validation_split=0)
    fit(nested(), tmp_path, class_weight={1: 2, 0: 1}, steps_per_epoch=2)


def test_another_policy_is_refused(tmp_path: Path):
    killed(fit, nested(), tmp_path, kill(3))
    keras.config.set_dtype_policy("mixed_bfloat16")
    with pytest.raises(SessionError, match=r"layer \d of the model: Dense, checksum .* in the saved training"):
        fit(nested(), tmp_path)


class Epochs(keras.callbacks.Callback):
    """Counts epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.name = 0, "first"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1


@pytest.mark.long
def test_a_callback_that_an_interrupted_fit_has_changed(tmp_path: Path):
    """In a notebook it is in the next `fit`, too: what was no state yet is as it was before the first one."""
    counts = Epochs()
    killed(fit, nested(), tmp_path, counts, kill(5), every=3, batch_size=2)
    assert counts.count == 1, "the state is of the first epoch"
    counts.name = "second"
    fit(nested(), tmp_path, counts, batch_size=2)
    assert (counts.count, counts.name) == (3, "second")


class Fails(keras.callbacks.Callback):
    """Cannot end."""

    def on_train_end(self, logs: Any = None) -> None:
        raise Killed


def test_a_fit_whose_callback_fails_at_its_end_may_be_called_again(tmp_path: Path):
    killed(fit, nested(), tmp_path, Fails())
    fit(nested(), tmp_path)
    with pytest.raises(SessionError, match="this program has completed already"):
        fit(nested(), tmp_path)


class Stops(keras.callbacks.Callback):
    """Ends the training in the middle of its second epoch, as a handler of a signal would."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self.model.optimizer.iterations == 3


def test_a_training_that_was_stopped_goes_on_with_more_epochs(tmp_path: Path, monkeypatch, caplog):
    from autodist_keras.callbacks.resume import resumable_fit

    caplog.set_level("INFO", "autodist")
    for epochs, ran, says in (
        (3, 3, ""), (3, 0, "this training ended in epoch 2 of 3, since stop_training was set. It is not run again"),
        (4, 4, "goes on in epoch 3 of 4 (saved"), (4, 0, "this training is complete. It is not run again"),
    ):  # fmt: skip
        caplog.clear()
        monkeypatch.setattr(resumable_fit, "_ended", set())  # another process
        steps = itertools.count()  # which is no state of the callback
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, steps=steps: next(steps))
        fit(nested(), tmp_path, Stops(), count, epochs=epochs)
        assert next(steps) == ran
        assert says in caplog.text and ("Resume(" in caplog.text) == bool(says)
