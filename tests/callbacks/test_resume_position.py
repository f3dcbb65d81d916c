"""After a failure a training has the batches that it would have had: in the epoch it goes on in, and in later ones."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_keras.callbacks import Resume
from autodist_keras.callbacks.resume import resumable_fit
from tests.support.compare import assert_same, named
from tests.support.ended import kill, killed
from tests.support.models import stacked
from tests.support.training import distributed, seeded

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data")


def build() -> keras.Model:
    return stacked(keras.Input((5,)), keras.layers.Dense(1))


def fit(source: Any, folder: Path | None, *callbacks: Any, **options: Any) -> dict[str, np.ndarray]:
    """One start of a program with one `fit`; the weights, which depend on the order of the batches, and History."""
    keras.utils.set_random_seed(2)
    model, x = seeded(build), source()
    own = [] if folder is None else [Resume(folder, every=1)]
    with distributed(model, replicas=1) as front:
        history = front.fit(x, verbose=0, shuffle=False, callbacks=[*own, *callbacks], **{"epochs": 4, **options})
    return named(model.weights) | {"loss": np.array(history.history["loss"]), "epochs": np.array(history.epoch)}


def assert_goes_on(source: Any, folder: Path, *kills: int, **options: Any) -> None:
    """Bit for bit: a training that is ended before these steps, each counted from its start, and one that is not."""
    whole, rest = [], []

    def counting(steps: list[int]) -> keras.callbacks.Callback:
        return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))

    expected = fit(source, None, counting(whole), **options)
    for steps in kills:
        killed(fit, source, folder, kill(steps), **options)
    assert_same(expected, fit(source, folder, counting(rest), **options), 0.0)
    assert len(whole) - sum(kills) <= len(rest) < len(whole), "what ran before the last end is not run again"


def rows(first: int = 0, last: int = 12) -> tf.data.Dataset:
    draws = np.random.default_rng(3)
    x, y = draws.normal(size=(20, 5)), draws.normal(size=(20, 1))
    return tf.data.Dataset.from_tensor_slices((x[first:last], y[first:last]))


def in_python(x: Any, y: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda row: row * 2.0, [x], tf.float64), (5,)), y


def chosen() -> tf.data.Dataset:
    """Nobody holds the selector itself, so the seeds of its shuffle cannot be read."""
    selector = tf.data.Dataset.range(2).shuffle(2, seed=1).repeat(6)
    return tf.data.Dataset.choose_from_datasets([rows(0, 6).repeat(), rows(6).repeat()], selector).batch(4)


SOURCES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "shuffled twice": (lambda: rows().shuffle(12).map(lambda x, y: (2.0 * x, y)).shuffle(4).batch(4).prefetch(2), {}),
    "concatenated": (
        lambda: rows(0, 5).concatenate(rows(5).shuffle(9)).batch(4).repeat(), {"steps_per_epoch": 3},
    ),
    "repeated": (lambda: rows().shuffle(12, seed=4).repeat(2).batch(8), {}),
    "cached": (lambda: rows().shuffle(12).cache().shuffle(4).batch(4), {}),
    "chosen": (chosen, {}),
    "chosen, of known length": (lambda: chosen().apply(tf.data.experimental.assert_cardinality(3)), {}),
    "in python": (lambda: rows(0, 5).concatenate(rows(5).shuffle(9)).map(in_python).shuffle(4).batch(4), {}),
}  # fmt: skip


def test_a_chosen_dataset_without_an_end(tmp_path: Path, monkeypatch):
    """What is taken again ends where the training was, also when it is complete and not run again."""
    def source() -> tf.data.Dataset:
        selector = tf.data.Dataset.range(2).shuffle(2, seed=1).repeat()
        return tf.data.Dataset.choose_from_datasets([rows(0, 6).repeat(), rows(6).repeat()], selector).batch(4)

    assert_goes_on(source, tmp_path, 5, steps_per_epoch=3)
    monkeypatch.setattr(resumable_fit, "_ended", set())  # another process
    fit(source, tmp_path, kill(0), steps_per_epoch=3)


def test_a_snapshot(tmp_path: Path):
    """TensorFlow writes its files while it is gone through, so a state of its iterator does not fit to them later."""
    names = iter(["whole", *["killed"] * 3])

    def source() -> tf.data.Dataset:
        return rows().shuffle(12).snapshot(str(tmp_path / next(names))).shuffle(4).batch(4)

    assert_goes_on(source, tmp_path / "states", 2, 5)


@pytest.mark.quick("while it is written")
@pytest.mark.parametrize("steps", [1, 4], ids=["while it is written", "later"])
def test_a_cache_in_a_file(steps: int, tmp_path: Path):
    """TensorFlow writes it in the first epoch. A user deletes a part of a file before the program starts again."""
    def source(name: str) -> tf.data.Dataset:
        return rows().shuffle(12).cache(str(tmp_path / name)).shuffle(2).batch(4)

    expected = fit(lambda: source("whole"), None)
    killed(fit, lambda: source("killed"), tmp_path / "states", kill(steps))
    complete = (tmp_path / "killed.index").exists()
    assert complete == (steps == 4)
    for file in [] if complete else tmp_path.glob("killed*"):
        file.unlink()
    assert_same(expected, fit(lambda: source("killed"), tmp_path / "states"), 0.0)


class Rows(keras.utils.PyDataset):
    """Batches in another order in each epoch: by a generator of its own, and by Python's random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._draws, self._order = np.random.default_rng(1), np.arange(5)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        first = 4 * int(self._order[index])
        x, y = next(iter(rows(first, first + 4).batch(4)))
        return x + random.random(), y

    def on_epoch_end(self) -> None:
        self._draws.shuffle(self._order)


def generated() -> Any:
    """Batches without an end, by numpy's random numbers."""
    while True:
        yield np.random.normal(size=(4, 5)), np.random.normal(size=(4, 1))


LONGER: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "dataset": (lambda: rows().shuffle(12).batch(4).shuffle(3), {}),
    "unknown": (lambda: rows().shuffle(12).filter(lambda x, y: x[0] < 1.0).batch(4), {}),
    "without an end": (lambda: rows().shuffle(12).repeat().batch(5), {"steps_per_epoch": 3}),
    "steps": (lambda: rows().shuffle(12).batch(2), {"steps_per_epoch": 4}),
    "skipped": (lambda: rows().shuffle(12).map(in_python).shuffle(4).batch(2), {"steps_per_epoch": 4}),
    "arrays": (
        lambda: next(iter(rows().batch(12)))[0].numpy(), {"y": np.ones(12), "batch_size": 2, "steps_per_epoch": 4},
    ),
    "py_dataset": (Rows, {}),
    "generator": (generated, {"steps_per_epoch": 3}),
}  # fmt: skip


@pytest.mark.quick("shuffled twice", "dataset", "py_dataset")
@pytest.mark.parametrize("name", SOURCES | LONGER)
def test_what_is_killed_goes_on_in_the_data(name: str, tmp_path: Path):
    """TensorFlow makes an inner iterator when it is first needed, and the seeds of its shuffle are drawn then.

    tf.data goes on where it was, and what Python makes is made again and skipped.
    """
    source, options = (SOURCES | LONGER)[name]
    assert_goes_on(source, tmp_path, 1, 4, 3, **options)


@pytest.mark.quick("dataset")
@pytest.mark.parametrize("name", LONGER)
def test_a_longer_training_goes_on_in_the_data(name: str, tmp_path: Path):
    """A complete training with more epochs than before has the batches of one that had these epochs at once."""
    source, options = LONGER[name]
    expected = fit(source, None, **options)
    for epochs in (1, 3):
        fit(source, tmp_path / str(epochs), epochs=epochs, **options)
        assert_same(expected, fit(source, tmp_path / str(epochs), **options), 0.0)


@pytest.mark.quick("stopped")
@pytest.mark.parametrize("stops", [False, True], ids=["whole", "stopped"])
def test_two_fits_of_one_py_dataset(stops: bool, tmp_path: Path, monkeypatch):
    """The first one is not run again. The data is told of its epochs, as far as they had ended."""
    def start(folder: Path, *callbacks: Any) -> dict[str, np.ndarray]:
        keras.utils.set_random_seed(2)
        model, data = seeded(build), Rows()

        def stop(batch: int, logs: Any) -> None:
            model.stop_training = stops and batch == 3 and len(model.history.epoch) == 1

        stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        with distributed(model, replicas=1) as front:
            for name, own in (("first", (stopping,)), ("second", callbacks)):
                front.fit(data, epochs=3, verbose=0, callbacks=[Resume(folder / name, every=1), *own])
        return named(model.weights)

    expected = start(tmp_path / "whole")
    killed(start, tmp_path / "killed", kill(7))
    monkeypatch.setattr(resumable_fit, "_ended", set())  # another process
    assert_same(expected, start(tmp_path / "killed"), 0.0)
