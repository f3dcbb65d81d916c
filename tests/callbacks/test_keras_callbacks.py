"""Each callback of Keras does on two replicas what it does on one device, with all that it can be asked for.

`docs/keras.md` lists the behaviours.
"""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_equally_trained, assert_same, named, state_in_order
from tests.support.ended import Killed, kill, killed
from tests.support.models import BATCH, BY_NAME, DENSE, even_data
from tests.support.recorded import HOOKS, error_of
from tests.support.training import (
    QUIET,
    assert_equal_training,
    compiled,
    distributed,
    fit,
    train_distributed,
    train_plain,
    trained,
)

CALLBACKS = keras.callbacks
X, Y = even_data().x, even_data().y


def _fit(front, *callbacks, x=X, epochs: int = 3, **options):
    options = {"validation_data": (X[:7], -Y[:7]), **QUIET, **options}  # gets worse while training gets better
    return front.fit(x, Y, epochs=epochs, callbacks=list(callbacks), **options).history


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for each run of a program: the plain one and the distributed one."""
    return (path for path in (tmp_path / name for name in ("plain", "distributed")) if not path.mkdir())


class _Log(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append([self.path, self.headers["Content-Type"], body.decode()])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def listening():
    server = http.server.HTTPServer(("127.0.0.1", 0), _Log)
    server.posted = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_callbacks_that_write_down_logs(folders, capsys):
    """CSVLogger, RemoteMonitor, LambdaCallback, History and ProgbarLogger, all in one training."""

    def program(front, model):
        folder, calls, history = next(folders), [], CALLBACKS.History()
        hooks = [name for name in HOOKS if name not in ("on_batch_begin", "on_batch_end")]
        called = {
            name: lambda *given, name=name, logs=None: calls.append([name, *map(_plain, given), _plain(logs)])
            for name in hooks
        }
        recorded = CALLBACKS.LambdaCallback(**called)
        with listening() as server:
            root = f"http://127.0.0.1:{server.server_port}"
            monitors = [CALLBACKS.RemoteMonitor(root, send_as_json=as_json) for as_json in (True, False)]
            for append in (False, True):
                table = CALLBACKS.CSVLogger(folder / "log.csv", separator=";", append=append)
                _fit(front, table, *monitors, recorded, history, CALLBACKS.ProgbarLogger(), epochs=2, validation_freq=2)
        front.evaluate(X, Y, callbacks=[recorded], verbose=0)
        front.predict(X, callbacks=[recorded], verbose=0)
        table = [line.split(";") for line in (folder / "log.csv").read_text().splitlines()]
        assert [len(row) for row in table] == [5] * 5 and table[1][3:] == ["NA", "NA"]
        shown = re.findall(r"(?:val_)?(?:loss|mae): ([\d.]+)", capsys.readouterr().out)
        return {
            "table": [[float(cell) if re.fullmatch(r"-?[\d.e-]+", cell) else cell for cell in row] for row in table],
            "posted": [[path, kind, *_numbers(body)] for path, kind, body in server.posted],
            "calls": calls, "history": history.history, "shown at the end": shown[-4:],
        }  # fmt: skip

    result = assert_equal_training(DENSE, program).result
    assert sum(name.endswith("/0") and name.startswith("posted/") for name in result) == 8


def _plain(value):
    return keras.tree.map_structure(np.asarray, value) if isinstance(value, dict) else 0 if value is None else value


def _numbers(body: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.\d+(?:e-\d+)?", body)]


def _stops_early(front, model):
    outcomes = {}
    for name, options in {
        "begins later": {"patience": 1, "start_from_epoch": 2},
        "below a line": {"baseline": 0.01, "patience": 1, "restore_best_weights": True},
        "the largest": {"monitor": "val_mae", "mode": "max", "patience": 1, "min_delta": 0.5},
    }.items():
        early = CALLBACKS.EarlyStopping(**options)
        fits = 2 if name == "begins later" else 1  # it begins anew with each fit
        histories = [_fit(front, early, epochs=4) for _ in range(fits)]
        outcomes[name] = histories, early.stopped_epoch, early.best_epoch, early.wait
    return outcomes


def test_early_stopping():
    result = assert_equal_training(DENSE, _stops_early).result
    assert [int(result[f"{name}/1"]) for name in ("begins later", "below a line", "the largest")] == [3, 1, 1]


def _learning_rates(front, model):
    plateau = partial(CALLBACKS.ReduceLROnPlateau, monitor="loss", factor=0.1, min_delta=10, patience=1)
    lowest, cooling = plateau(min_lr=1e-4), plateau(cooldown=2, verbose=1)
    scheduled = [CALLBACKS.LearningRateScheduler(rate, verbose=1)
                 for rate in (lambda epoch: 0.1 / (epoch + 1), lambda epoch, rate: 0.5 * rate)]  # fmt: skip
    # A callback that is used again begins anew.
    histories = [
        _fit(front, callback, epochs=4, validation_data=None) for callback in (lowest, cooling, cooling, *scheduled)
    ]
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 3)
    front.compile(keras.optimizers.SGD(schedule), "mse", jit_compile=False)
    return histories, error_of(lambda: _fit(front, scheduled[0]))


def test_callbacks_that_set_the_learning_rate(capsys):
    printed = []

    def program(front, model):
        outcome = _learning_rates(front, model)
        printed.append(capsys.readouterr().out)
        return outcome

    result = assert_equal_training(DENSE, program, optimizer="sgd").result
    assert printed[0] == printed[1] and "ReduceLROnPlateau reducing learning rate" in printed[0]
    assert str(result["1"]).startswith("TypeError: This optimizer was created with a `LearningRateSchedule`")


KEPT = {
    "the best epochs": {"monitor": "loss", "mode": "min", "save_best_only": True},
    "the best batches": {"monitor": "mae", "mode": "max", "save_best_only": True, "save_freq": 2},
    "better than a number": {"monitor": "loss", "save_best_only": True, "initial_value_threshold": 1.0, "mode": "min"},
    "all weights": {"save_freq": 4, "save_weights_only": True},
}
ENDINGS = {True: ".weights.h5", False: ".keras"}


def test_checkpoints(folders):
    def program(front, model):
        folder = next(folders)
        keepers = []
        for name, options in KEPT.items():
            batch = "-{batch}" if "save_freq" in options else ""
            file = name + "-{epoch}" + batch + "-{mae:.4f}" + ENDINGS["save_weights_only" in options]
            keepers.append(CALLBACKS.ModelCheckpoint(str(folder / file), **options))
        _fit(front, *keepers)
        front.compile("sgd", "mse", steps_per_execution=2, jit_compile=False)
        # It counts batches; with several in one execution it saves at the next end of one.
        counting = CALLBACKS.ModelCheckpoint(
            str(folder / "executions-{epoch}-{batch}.weights.h5"), save_freq=3, save_weights_only=True
        )
        _fit(front, counting, epochs=2)
        return {path.name: _loaded(path) for path in sorted(folder.iterdir())}

    result = assert_equal_training(DENSE, program).result
    assert {name.split("-")[0] for name in result} == {*KEPT, "executions"}


def _loaded(path: Path) -> dict:
    if path.suffix == ".keras":
        model = keras.models.load_model(path)
    else:
        model = compiled(DENSE, "sgd" if path.name.startswith("executions") else "adam")
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
    return {**named(model.weights), **named(model.optimizer.variables)}


def test_backups_of_steps_and_broken_files(folders):
    def program(front, model):
        folder = next(folders)
        # Both have a file before the last one, to which they go back where the last is broken.
        backup = partial(CALLBACKS.BackupAndRestore, folder, save_freq=1, double_checkpoint=True)
        killed(_fit, front, backup(), kill(5))
        (last,) = (path for path in folder.rglob("*.h5") if "prev" not in str(path.relative_to(folder)))
        last.write_bytes(b"cut off")
        said = error_of(lambda: _fit(front, backup()))
        return said, sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))

    assert_equal_training(DENSE, program)


def test_backup_and_restore_continues(folders):
    """BackupAndRestore brings an interrupted training back to its last epoch."""
    def program(front, model):
        folder = next(folders)
        with pytest.raises(Killed):
            _fit(front, CALLBACKS.BackupAndRestore(folder), kill(6))  # the first step of epoch 2
        return {"history": _fit(front, CALLBACKS.BackupAndRestore(folder)), "epochs": model.history.epoch}

    outcome = assert_equal_training(DENSE, program, replicas=2)
    assert outcome.result["epochs/0"] == 2


def test_the_progress_bar_is_kerass(capsys):
    texts = []

    def program(front, model):
        _fit(front, epochs=2, validation_data=None, verbose=2)
        texts.append("".join(character for character in capsys.readouterr().out if not character.isdigit()))
        return {"done": 1}

    assert_equal_training(DENSE, program, replicas=2)
    normal = [[part for part in text.split() if not re.fullmatch("m?s(/(step|epoch))?", part)] for text in texts]
    assert normal[0] == normal[1] and normal[0][:2] == ["Epoch", "/"]


class Watching(CALLBACKS.Callback):
    """Keeps the weights that other callbacks see."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _keep(self, *_, logs=None):
        self.seen.append(self.model.get_weights())

    on_epoch_end = on_test_begin = on_train_batch_end = _keep


def _swapped(front, model):
    outcomes = []
    for scaled in (False, True):
        optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
        front.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse", jit_compile=False)
        swap, watching = CALLBACKS.SwapEMAWeights(swap_on_epoch=not scaled), Watching()
        outcomes += [_fit(front, swap, watching, epochs=2), watching.seen]
        outcomes += [front.evaluate(X, Y, callbacks=[swap], verbose=0), front.predict(X, callbacks=[swap], verbose=0)]
    front.compile("sgd", "mse", jit_compile=False)
    return outcomes, error_of(lambda: _fit(front, CALLBACKS.SwapEMAWeights()))


def test_averages_of_weights_in_their_place():
    result = assert_equal_training(DENSE, _swapped, optimizer="sgd").result
    assert str(result["1"]).startswith("ValueError: SwapEMAWeights must be used when")


@pytest.mark.parametrize("raises", [False, pytest.param(True, marks=pytest.mark.long)], ids=["stops", "raises"])
def test_nan_ends_a_training_in_the_middle_of_an_epoch(raises):
    """The second batch has it, on replica 0 of two. An error comes without `on_train_end`."""
    seen, x = [], np.where(np.arange(len(X))[:, None] == BATCH + 1, np.nan, X)

    def program(front, model):
        ends, batches = [], []
        counter = CALLBACKS.LambdaCallback(
            on_train_end=ends.append, on_train_batch_end=lambda batch, logs: batches.append(batch)
        )
        ending = CALLBACKS.TerminateOnNaN(**{"raise_error": True} if raises else {})
        said = error_of(lambda: _fit(front, ending, counter, x=x, validation_data=None))
        seen.append([said, len(ends), batches])
        return {"stopped": model.stop_training}

    assert_same(train_plain(DENSE, program).everything, train_distributed(DENSE, program).everything)
    said, *found = seen[0]
    assert seen[0] == seen[1] and found == ([0, [0]] if raises else [1, [0, 1]]) and ("NaN" in said) == raises


class Summarized(keras.layers.Layer):
    """Writes a summary in its call."""

    def call(self, x):
        tf.summary.scalar("mean", tf.reduce_mean(x), step=0)
        return x


def test_tensorboard(folders, tmp_path):
    """Images and graphs, a schedule's rates, a profile and a projector; a summary that the step writes is refused."""
    pytest.importorskip("tensorboard", reason="TensorFlow writes summaries with the tensorboard package only")
    from tensorflow.compat.v1.train import summary_iterator
    from tensorflow.python.framework.tensor_util import MakeNdarray

    def build():
        ids = keras.Input((2,), dtype="int32", name="ids")
        rows = keras.layers.Flatten(name="flat")(keras.layers.Embedding(9, 3, name="table")(ids))
        model = keras.Model(ids, keras.layers.Dense(1, name="out")(rows), name="ids")
        schedule = keras.optimizers.schedules.CosineDecay(0.1, 3)
        model.compile(keras.optimizers.SGD(schedule), "mse", jit_compile=False)
        return model

    def program(front, model):
        folder = next(folders)
        board = CALLBACKS.TensorBoard(
            folder, histogram_freq=1, write_images=True, write_steps_per_second=True, update_freq=2,
            profile_batch=(2, 3), embeddings_freq=1, embeddings_metadata={"table": "words.tsv"},
        )  # fmt: skip
        ids = np.arange(2 * len(X)).reshape(-1, 2) % 9
        front.fit(ids, Y, epochs=2, validation_data=(ids, Y), callbacks=[board], **QUIET)
        found = {"profiles": len(list(folder.rglob("*.xplane.pb"))),
                 "projector": (folder / "projector_config.pbtxt").read_text(),
                 "tables": len(list(folder.rglob("*embedding*")))}  # fmt: skip
        for path in sorted(folder.rglob("*tfevents*")):
            for event in summary_iterator(str(path)):
                for value in event.summary.value:
                    array = MakeNdarray(value.tensor) if value.HasField("tensor") else np.array(value.simple_value)
                    name = f"{path.parent.name} {value.tag} {event.step}"
                    found[name] = array if array.dtype.kind == "f" and "per_second" not in value.tag else array.size
        return found

    # Summaries are written in float32.
    result = assert_equal_training(build, program, tolerance=2.0**-23).result
    tags = "epoch_learning_rate", "steps_per_second", "kernel/image", "train keras", "evaluation_loss_vs_iterations"
    for said in tags:
        assert any(said in name for name in result), said
    model = keras.Sequential([keras.Input((5,)), Summarized(name="said"), keras.layers.Dense(1)], name="summarized")
    with distributed(model) as front:
        for callbacks in ([], [CALLBACKS.TensorBoard(tmp_path / "own", update_freq=1)]):
            front.compile("sgd", "mse", jit_compile=False)
            with pytest.raises(ValueError, match="WriteSummary") if callbacks else nullcontext():
                front.fit(X, Y, callbacks=callbacks, **QUIET)
            for callback in callbacks:
                callback.on_train_end()  # as Keras does not where a step raises


def test_orbax_checkpoints(tmp_path):
    """Saved distributed and loaded plain, and the other way round, optimizer included."""
    pytest.importorskip("orbax.checkpoint", reason="`make test-packages` installs it")
    if not hasattr(CALLBACKS, "OrbaxCheckpoint"):
        pytest.skip("this Keras has no OrbaxCheckpoint")
    heads, outcomes = BY_NAME["heads"], []
    for first, second in ((nullcontext, nullcontext), (distributed, nullcontext), (nullcontext, distributed)):
        model, folder = compiled(heads), tmp_path / str(len(outcomes))
        best = CALLBACKS.OrbaxCheckpoint(folder / "best", monitor="loss", save_best_only=True, max_to_keep=None)
        steps = CALLBACKS.OrbaxCheckpoint(folder / "steps", save_freq=4, max_to_keep=2, save_on_background=False)
        with first(model) as front:
            fit(front, heads.data(), epochs=2, callbacks=[best, steps])
        for name in ("best", "steps"):
            loaded = keras.models.load_model(folder / name)
            assert_same(state_in_order(model), state_in_order(loaded), tolerance=0.0)
        with second(loaded) as front:
            outcomes.append(trained(loaded, fit(front, heads.data(), epochs=2)))
    for outcome in outcomes[1:]:
        assert_equally_trained(outcomes[0], outcome)
