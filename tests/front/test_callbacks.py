"""Keras's callbacks do with replicas what they do on one device.

`test_keras_callbacks.py` asks more of each, in fewer trainings. What it shows too is left to the long tests here.
"""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.compare import assert_same, named
from tests.support.models import BATCH, DENSE, even_data
from tests.support.training import QUIET, assert_equal_training, compiled, train_distributed, train_plain

CALLBACKS = keras.callbacks


def _fit(front, *callbacks, epochs: int = 4, **options):
    data = even_data()
    held_out = (data.x[:7], -data.y[:7])  # gets worse while training gets better
    return front.fit(
        data.x, data.y, epochs=epochs, validation_data=held_out, callbacks=list(callbacks), **{**QUIET, **options}
    )


@pytest.mark.long
def test_reduce_lr_on_plateau():
    def program(front, model):
        callback = CALLBACKS.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=0.0)
        return {"history": _fit(front, callback, epochs=4).history}

    result = assert_equal_training(DENSE, program).result
    rates = [value for name, value in result.items() if "history/learning_rate" in name]
    assert min(rates) < max(rates)


@pytest.mark.long
def test_learning_rate_scheduler():
    def program(front, model):
        return _fit(front, CALLBACKS.LearningRateScheduler(lambda epoch, rate: rate * 0.3)).history

    assert_equal_training(DENSE, program, replicas=3, strategy="PS")


@pytest.mark.long
def test_early_stopping_restores_the_best_weights():
    def program(front, model):
        callback = CALLBACKS.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
        history = _fit(front, callback, epochs=8)
        return {"history": history.history, "stopped": callback.stopped_epoch, "best": callback.best_epoch}

    outcome = assert_equal_training(DENSE, program, replicas=2)
    assert 0 < outcome.result["stopped"] < 7


@pytest.mark.long
@pytest.mark.parametrize("frequency", ["epoch", 3])
@pytest.mark.parametrize("weights_only", [False, True], ids=["models", "weights"])
def test_model_checkpoint(frequency, weights_only: bool, tmp_path: Path):
    runs = iter(("plain", "distributed"))

    def program(front, model):
        folder = tmp_path / next(runs)
        ending = ".weights.h5" if weights_only else ".keras"
        step = "{epoch}" if frequency == "epoch" else "{epoch}-{batch}"
        callback = CALLBACKS.ModelCheckpoint(
            str(folder / f"{step}{ending}"), save_freq=frequency, save_weights_only=weights_only
        )
        _fit(front, callback, epochs=3)
        return {path.name: _loaded(path, weights_only) for path in sorted(folder.iterdir())}

    outcome = assert_equal_training(DENSE, program, replicas=2)
    assert len({name.split("/")[0] for name in outcome.result}) >= 3


def _loaded(path: Path, weights_only: bool) -> dict:
    """What a saved file holds, with the counter of its optimizer."""
    if not weights_only:
        model = keras.models.load_model(path)
        return {"weights": named(model.weights), "iterations": model.optimizer.iterations.numpy()}
    model = compiled(DENSE)
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    return {"weights": named(model.weights), "iterations": model.optimizer.iterations.numpy()}


@pytest.mark.long
def test_model_checkpoint_of_the_best_epoch(tmp_path: Path):
    runs = iter(("plain", "distributed"))

    def program(front, model):
        path = tmp_path / f"{next(runs)}.keras"
        _fit(front, CALLBACKS.ModelCheckpoint(str(path), monitor="val_loss", save_best_only=True), epochs=5)
        return _loaded(path, weights_only=False)

    assert_equal_training(DENSE, program, replicas=3)


@pytest.mark.long
def test_csv_logger(tmp_path: Path):
    runs = iter(("plain", "distributed"))

    def program(front, model):
        path = tmp_path / f"{next(runs)}.csv"
        _fit(front, CALLBACKS.CSVLogger(str(path)), epochs=3)
        header, *lines = path.read_text().splitlines()
        rows = [[float(cell) for cell in line.split(",")] for line in lines]
        assert len(rows) == 3
        return {name: [row[i] for row in rows] for i, name in enumerate(header.split(","))}

    assert_equal_training(DENSE, program, replicas=3)


@pytest.mark.long
def test_tensorboard(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="TensorFlow writes summaries with the tensorboard package only")
    from tensorflow.compat.v1.train import summary_iterator
    from tensorflow.python.framework.tensor_util import MakeNdarray

    runs = iter(("plain", "distributed"))

    def program(front, model):
        folder = tmp_path / next(runs)
        _fit(front, CALLBACKS.TensorBoard(str(folder), histogram_freq=1, write_graph=False, update_freq=1), epochs=2)
        scalars = {}
        for path in sorted(folder.rglob("*tfevents*")):
            for event in summary_iterator(str(path)):
                for value in event.summary.value:
                    array = MakeNdarray(value.tensor) if value.HasField("tensor") else np.array(value.simple_value)
                    if array.dtype.kind == "f" and "steps_per_second" not in value.tag:
                        scalars[f"{path.parent.name} {value.tag} {event.step} {len(scalars)}"] = array
        return scalars

    # summaries are written in float32: two numbers that differ in their 16th digit may round to neighbours there
    outcome = assert_equal_training(DENSE, program, replicas=2, tolerance=2.0**-23)
    assert any("epoch_loss" in name for name in outcome.result) and any("kernel" in name for name in outcome.result)


@pytest.mark.quick("AllReduce")
@pytest.mark.parametrize("builder", ["AllReduce", "PS"])
def test_terminate_on_nan_stops_at_the_same_batch(builder: str):
    def program(front, model):
        data, batches = even_data(), []
        data.x[2 * BATCH + 1] = np.nan  # in the third of three batches, on replica 0 of two
        counter = CALLBACKS.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))
        front.fit(data.x, data.y, epochs=3, callbacks=[CALLBACKS.TerminateOnNaN(), counter], **QUIET)
        return {"batches": batches, "stopped": model.stop_training}

    expected = train_plain(DENSE, program)
    assert [int(value) for name, value in expected.result.items() if "batches" in name] == [0, 1, 2]
    assert_same(expected.everything, train_distributed(DENSE, program, strategy=builder).everything)


def test_backup_and_restore_continues(tmp_path: Path):
    """BackupAndRestore brings an interrupted training back to its last epoch."""
    runs = iter(("plain", "distributed"))

    def program(front, model):
        folder = str(tmp_path / next(runs))

        def interrupt(epoch, logs):
            if epoch == 2 and not model.interrupted:
                model.interrupted = True
                raise KeyboardInterrupt

        model.interrupted = False
        stop = CALLBACKS.LambdaCallback(on_epoch_begin=interrupt)
        with pytest.raises(KeyboardInterrupt):
            _fit(front, CALLBACKS.BackupAndRestore(folder), stop)
        history = _fit(front, CALLBACKS.BackupAndRestore(folder), stop)
        return {"epochs": history.epoch, "history": history.history}

    outcome = assert_equal_training(DENSE, program, replicas=2)
    assert outcome.result["epochs/0"] == 2


@pytest.mark.long
def test_callbacks_run_once_and_in_keras_order():
    def program(front, model):
        calls = []
        names = [name for name in dir(CALLBACKS.Callback) if name.startswith("on_")]

        class Recorder(CALLBACKS.Callback):
            """Keeps the name of each call."""

        for name in names:
            setattr(Recorder, name, lambda self, *args, _name=name, **kwargs: calls.append(names.index(_name)))
        _fit(front, Recorder(), epochs=2)
        return {"calls": calls}

    assert_equal_training(DENSE, program, replicas=3)


def test_a_callback_stops_training_in_the_middle_of_an_epoch():
    def program(front, model):
        def stop(batch, logs):
            model.stop_training = batch == 1

        return _fit(front, CALLBACKS.LambdaCallback(on_train_batch_end=stop)).history

    assert_equal_training(DENSE, program, replicas=2)


@pytest.mark.long
def test_the_progress_bar_is_kerass(capsys):
    texts = []

    def program(front, model):
        data = even_data()
        front.fit(data.x, data.y, epochs=2, verbose=2, batch_size=BATCH, shuffle=False)
        texts.append("".join(character for character in capsys.readouterr().out if not character.isdigit()))
        return {"done": 1}

    assert_equal_training(DENSE, program, replicas=2)
    normal = [[part for part in text.split() if not re.fullmatch("m?s(/(step|epoch))?", part)] for text in texts]
    assert normal[0] == normal[1] and normal[0][:2] == ["Epoch", "/"]
