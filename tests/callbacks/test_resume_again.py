"""A program that was killed is started again: what ends a `fit`, what is the same program, and what is refused."""

import itertools
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_keras.callbacks import Resume, Throughput
from autodist_keras.callbacks.resume import resumable_fit
from tests.support.compare import assert_same, in_order, named
from tests.support.ended import Killed, kill, killed
from tests.support.made_data import Batches
from tests.support.models import ready, stacked
from tests.support.training import distributed, seeded


def data(rows: int = 24) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(3)
    return draws.normal(size=(rows, 5)), draws.normal(size=(rows, 1))


def build(optimizer: Any = "adam", activation: str = "tanh", **settings: Any) -> keras.Model:
    hidden = keras.layers.Dense(4, activation=activation)
    return stacked(keras.Input((5,)), hidden, keras.layers.Dense(1), optimizer=optimizer, **settings)


def fit(folder: Path, *callbacks: Any, case: Any = build, given: Any = None, **options: Any):
    """One start of a program with one `fit`."""
    x, y = data() if given is None else (given, None)
    model = seeded(case)
    sizes = {"batch_size": 8} if given is None else {}
    arguments = {"x": x, "y": y, "epochs": 3, "verbose": 0, **sizes, **options}
    with distributed(model, replicas=1) as front:
        history = front.fit(**arguments, callbacks=[Resume(folder, every=1), *callbacks])
    return history.history, named(model.weights)


@pytest.mark.quick("scaled")
@pytest.mark.parametrize("wrap", [lambda inner: inner, keras.optimizers.LossScaleOptimizer], ids=["alone", "scaled"])
def test_a_complete_training_with_averages_of_the_weights(wrap, tmp_path: Path, monkeypatch):
    """Keras ends each `fit` by writing the averages, also a `fit` that has no step left."""
    def averaging() -> keras.Model:
        return build(wrap(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)))

    first = fit(tmp_path, case=averaging)
    monkeypatch.setattr(resumable_fit, "_ended", set())  # another process
    again = fit(tmp_path, case=averaging)
    assert first[0] == again[0]
    assert_same(first[1], again[1], 0.0)


def test_what_callbacks_decide_when_a_training_begins_stays(tmp_path: Path):
    """A log that is continued gets no second header, and a list of the program is filled, not replaced."""
    class Collects(keras.callbacks.Callback):
        def __init__(self, found: list[float]) -> None:
            super().__init__()
            self.found = found

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.found.append(logs["loss"])

    log, found = tmp_path / "log.csv", []

    def callbacks(found: list[float]) -> tuple[Any, ...]:
        return keras.callbacks.CSVLogger(log, append=True), Collects(found)

    ended = callbacks([])
    killed(fit, tmp_path / "states", *ended, kill(5))
    ended[0].csv_file.close()
    fit(tmp_path / "states", *callbacks(found))
    assert [line.partition(",")[0] for line in log.read_text().splitlines()] == ["epoch", "0", "1", "2"]
    assert len(found) == 9


def _rows(index: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = data()
    return x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(("workers", "steps", "options"), [(2, 9, {}), (1, 5, {"steps_per_epoch": 4})])
def test_the_order_of_batches_that_keras_draws(workers: int, steps: int, options: dict[str, int], tmp_path: Path):
    """Threads make the batches; or an iterator goes on in a later epoch."""
    def start(folder: str, *callbacks: Any) -> Any:
        return fit(tmp_path / folder, *callbacks, given=Batches(_rows, 6, workers=workers), **options)

    expected = start("whole")
    killed(start, "killed", kill(steps))
    found = start("killed")
    assert expected[0] == found[0]
    assert_same(expected[1], found[1], 0.0)


def _program(folder: Path, *callbacks: Any) -> dict[str, np.ndarray]:
    """Two fits of one dataset, with random numbers between them."""
    model = seeded(build)
    x, y = data()
    random.seed(5)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24).batch(8)

    def batches():  # TensorFlow takes batches ahead, so it draws nothing that the rest of the program draws, too
        draws = np.random.default_rng(1)
        while True:
            yield draws.normal(size=(8, 5)), draws.normal(size=(8, 1))

    def draw(batch: int, logs: Any) -> None:
        np.random.normal(), random.random()

    drawing = keras.callbacks.LambdaCallback(on_train_batch_end=draw)

    with distributed(model, replicas=1) as front:
        def run(name: str, *given: Any, **options: Any) -> None:
            own = callbacks if name == "third" else (drawing,)
            front.fit(*given, epochs=2, verbose=0, callbacks=[Resume(folder / name, every=1), *own], **options)

        run("first", dataset, shuffle=False)
        run("second", batches(), steps_per_epoch=3, shuffle=False)
        run("third", x + np.random.normal(size=x.shape), y, batch_size=8)
        run("fourth", dataset, shuffle=False)
    return named(model.weights)


@pytest.mark.quick("0")
@pytest.mark.parametrize("steps", [0, 4])
def test_a_program_of_several_fits_goes_on_with_the_random_numbers_of_those_before(steps, tmp_path: Path, monkeypatch):
    expected = _program(tmp_path / "whole")
    killed(_program, tmp_path / "killed", kill(steps))
    monkeypatch.setattr(resumable_fit, "_ended", set())  # another process
    assert_same(expected, _program(tmp_path / "killed"), 0.0)


def _gan(rate: float) -> keras.Model:
    class Two(keras.Sequential):
        def compile(self, first: Any, second: Any) -> None:
            super().compile("sgd", "mse")
            self.first, self.second = first, second

    return ready(Two([keras.Input((5,)), keras.layers.Dense(1)]), keras.optimizers.SGD(rate), keras.optimizers.SGD(0.1))


CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "activation": ({"case": lambda: build(activation="relu")}, {}, "layer 1 of"),
    "another optimizer": ({"case": lambda: _gan(0.1)}, {"case": lambda: _gan(0.2)}, "optimizer 1 of the model"),
    "validation": ({"validation_data": data()}, {"validation_data": data(16)}, r"data, validation_data\[0\]"),
    "jit_compile": ({}, {"case": lambda: build(jit_compile=True)}, r"compile\(jit_compile=...\): False in the saved"),
}


@pytest.mark.quick("activation", "another optimizer")
@pytest.mark.parametrize("name", CHANGED)
def test_a_training_that_has_changed_is_refused(name: str, tmp_path: Path):
    before, after, message = CHANGED[name]
    killed(fit, tmp_path, kill(4), **before)
    with pytest.raises(SessionError, match=message):
        fit(tmp_path, **after)
    fit(tmp_path, **before, batch_size=np.int64(8))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_does_not_end_a_training(tmp_path: Path, caplog):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(tmp_path)], check=True)
    try:
        history, _ = fit(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert len(history["loss"]) == 3
    assert "a state was not saved ([Errno 28] No space left on device)" in caplog.text


def test_a_folder_in_which_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match=r"states cannot be written there .*Pass a folder in which this program may"):
        fit(tmp_path / "file")
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "state-copy.resume").write_text("")
    assert len(fit(tmp_path / "states")[0]["loss"]) == 3


def test_the_throughput_counts_the_steps_of_an_execution_that_is_not_full():
    x, y = data(40)
    with distributed(seeded(lambda: build(steps_per_execution=4)), replicas=1) as front:
        logs = front.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[Throughput()]).history
    ratios = np.divide(logs["examples_per_second"], logs["steps_per_second"])
    np.testing.assert_allclose(ratios, 8.0)


def nested() -> keras.Model:
    """A model in a model. Each one that is made gets names with other numbers."""
    keras.utils.set_random_seed(5)
    inputs, outer = keras.Input((3,)), keras.Input((3,))
    inner = keras.Model(inputs, keras.layers.Dense(4, activation="tanh")(inputs))
    return ready(keras.Model(outer, keras.layers.Dense(1)(inner(outer))), "adam", "mse")


def fit_nested(model: keras.Model, folder: Path, *callbacks: Any, every: int = 1, **options: Any) -> dict[str, Any]:
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
    expected, model = fit_nested(nested(), tmp_path / "whole"), nested()
    killed(fit_nested, model, tmp_path / "killed", kill(3))
    found = fit_nested(model if cells == "one" else nested(), tmp_path / "killed")
    assert_same(expected, found, tolerance=0.0)


def test_the_same_in_other_words_is_the_same(tmp_path: Path):
    said = {"class_weight": {0: 1.0, 1: 2.0}, "steps_per_epoch": np.int64(2), "validation_split": 0}
    killed(fit_nested, nested(), tmp_path, kill(3), **said)
    fit_nested(nested(), tmp_path, class_weight={1: 2, 0: 1}, steps_per_epoch=2)


def test_another_policy_is_refused(tmp_path: Path):
    killed(fit_nested, nested(), tmp_path, kill(3))
    keras.config.set_dtype_policy("mixed_bfloat16")
    with pytest.raises(SessionError, match=r"layer \d of the model: Dense, checksum .* in the saved training"):
        fit_nested(nested(), tmp_path)


class Epochs(keras.callbacks.Callback):
    """Counts epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.name = 0, "first"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1


def test_a_callback_that_an_interrupted_fit_has_changed(tmp_path: Path):
    """In a notebook it is in the next `fit`, too: what was no state yet is as it was before the first one."""
    counts = Epochs()
    killed(fit_nested, nested(), tmp_path, counts, kill(5), every=3, batch_size=2)
    assert counts.count == 1, "the state is of the first epoch"
    counts.name = "second"
    fit_nested(nested(), tmp_path, counts, batch_size=2)
    assert (counts.count, counts.name) == (3, "second")


class Fails(keras.callbacks.Callback):
    """Cannot end."""

    def on_train_end(self, logs: Any = None) -> None:
        raise Killed


def test_a_fit_whose_callback_fails_at_its_end_may_be_called_again(tmp_path: Path):
    killed(fit_nested, nested(), tmp_path, Fails())
    fit_nested(nested(), tmp_path)
    with pytest.raises(SessionError, match="this program has completed already"):
        fit_nested(nested(), tmp_path)


class Stops(keras.callbacks.Callback):
    """Ends the training in the middle of its second epoch, as a handler of a signal would."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self.model.optimizer.iterations == 3


def test_a_training_that_was_stopped_goes_on_with_more_epochs(tmp_path: Path, monkeypatch, caplog):
    caplog.set_level("INFO", "autodist")
    for epochs, ran, says in (
        (3, 3, ""), (3, 0, "this training ended in epoch 2 of 3, since stop_training was set. It is not run again"),
        (4, 4, "goes on in epoch 3 of 4 (saved"), (4, 0, "this training is complete. It is not run again"),
    ):  # fmt: skip
        caplog.clear()
        monkeypatch.setattr(resumable_fit, "_ended", set())  # another process
        steps = itertools.count()  # which is no state of the callback
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, steps=steps: next(steps))
        fit_nested(nested(), tmp_path, Stops(), count, epochs=epochs)
        assert next(steps) == ran
        assert says in caplog.text and ("Resume(" in caplog.text) == bool(says)
