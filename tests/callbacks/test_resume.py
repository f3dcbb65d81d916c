"""A training that was ended at any step and started again with `Resume` ends with the numbers of one that was not."""

import itertools
import json
import os
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from autodist_core.errors import SessionError
from autodist_core.strategy import AllReduce
from autodist_keras.callbacks import Resume
from autodist_keras.callbacks.resume.state_files import StateFiles
from tests.support.compare import TOLERANCE, Trained, assert_equally_trained
from tests.support.ended import kill, killed
from tests.support.models import stacked
from tests.support.programs import printed_by
from tests.support.training import distributed, run, seeded

EXAMPLES, BATCH, EPOCHS = 24, 4, 3
DENSE = keras.layers.Dense
STEPS = 6
"""Batches of an epoch, all of one size. The last batch of the program that is killed has one example."""


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(EXAMPLES, 5))
    return x, np.sin(x[:, :1])


def of_layers(*layers: Any, **settings: Any) -> keras.Model:
    return stacked(*layers, **{"optimizer": "adam", "metrics": ["mae"], **settings})


def tanh(units: int) -> keras.layers.Layer:
    return keras.layers.Dense(units, activation="tanh")


def build(**settings: Any) -> keras.Model:
    """A model with dropout, whose seed is state, and metrics that Keras makes in the first step."""
    return of_layers(keras.Input((5,)), tanh(6), keras.layers.Dropout(0.3, seed=7), DENSE(1), **settings)


RAN: list[int] = []
"""The steps that the last call of `train` ran."""


def train(folder: Path | None, callbacks=(), *, case=build, replicas=1, strategy=None, keep=2, **arguments):
    """One process's part of a training: from its beginning, or from the newest state of a folder."""
    model = seeded(case)
    own = [] if folder is None else [Resume(folder, every=1, keep=keep)]

    def program(front, model):
        x, y = data()
        given = {"x": x, "y": y, "batch_size": BATCH, "epochs": EPOCHS, **arguments}
        given = {name: value() if callable(value) else value for name, value in given.items() if value is not None}
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: RAN.append(batch))
        RAN.clear()
        history = front.fit(**given, verbose=0, callbacks=[*own, *(make() for make in callbacks), count])
        return {"history": history.history, "epochs": history.epoch}

    with distributed(model, strategy, replicas=replicas) as front:
        return run(program, front, model)


@cache
def never_killed() -> Trained:
    """The training of `build()` on arrays, from its beginning to its end."""
    return train(None)


def interrupted(folder: Path, kills: tuple[int, ...], callbacks=(), settings=None, **arguments) -> Trained:
    """A training that is ended again and again, each time so many steps after its beginning, and then completed."""
    for index, at in enumerate(kills):
        killed(train, folder, [*callbacks, lambda at=at: kill(at)], **{**arguments, **(settings or [{}] * 9)[index]})
        assert len(RAN) <= at
    found = train(folder, callbacks, **{**arguments, **(settings or [{}] * 9)[len(kills)]})
    # The rest and no more: what ran before the last end is not run again.
    total = len([name for name in found.result if name.startswith("epochs/")]) * STEPS
    assert 0 < len(RAN) < total
    return found


@pytest.mark.quick("often")
@pytest.mark.parametrize("kills", [(2,), (STEPS, 1, 0, 8)], ids=["once", "often"])
def test_arrays_in_a_shuffled_order(kills, tmp_path: Path, caplog):
    """Bit for bit on one replica: weights, optimizer, dropout, the epoch's logs, the permutation."""
    caplog.set_level("INFO", "autodist")
    assert_equally_trained(never_killed(), interrupted(tmp_path, kills), tolerance=0.0)
    said = re.findall(r"goes on in epoch (\d) of 3, at step (\d) of 6 \(saved 20..-..-.. ..:..:..\)", caplog.text)
    epoch, step = map(int, said[-1])
    assert len(said) == len(kills) and len(RAN) == (EPOCHS - epoch) * STEPS + STEPS - step + 1


class Warmup(keras.callbacks.Callback):
    """Raises the learning rate at the beginning of each step; counts in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[int, float] = {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates[len(self.rates)] = float(self.model.optimizer.learning_rate) * 1.01
        self.model.optimizer.learning_rate = self.rates[len(self.rates) - 1]


class Counter(keras.callbacks.Callback):
    """Has a state that only its own methods can give; scales the learning rate with it."""

    def __init__(self) -> None:
        super().__init__()
        self._count = iter(range(1000))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["counted"] = next(self._count)

    def get_state(self) -> dict[str, int]:
        self._count, copy = itertools.tee(self._count)
        return {"next": next(copy)}

    def set_state(self, state: dict[str, int]) -> None:
        self._count = itertools.count(state["next"])


def test_callbacks_go_on(tmp_path: Path):
    """Keras's own, and a user's, which change weights and learning rate by what they have seen in earlier epochs."""
    of_keras = keras.callbacks
    callbacks = [
        Counter, lambda: of_keras.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=0.05), Warmup,
        lambda: of_keras.EarlyStopping("val_loss", patience=2, min_delta=0.05, restore_best_weights=True),
        lambda: of_keras.LearningRateScheduler(lambda epoch, rate: rate * 1.1),
        lambda: of_keras.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True),
    ]
    arguments = {"epochs": 12, "validation_split": 1 / 6}
    expected = train(None, callbacks, **arguments)
    assert 3 < len([name for name in expected.result if "counted" in name]) < 12, "it is to stop early"
    found = interrupted(tmp_path / "states", (7, 9), callbacks, **arguments)
    assert_equally_trained(expected, found, tolerance=0.0)


def test_several_batches_in_one_execution(tmp_path: Path):
    case = partial(build, steps_per_execution=4)
    assert_equally_trained(train(None, case=case), interrupted(tmp_path, (1, 2), case=case), tolerance=0.0)


def lazy() -> keras.Model:
    """A model of which nothing exists before the first step, with weights that are not initialized alike twice."""
    initializer = keras.initializers.RandomNormal(seed=int.from_bytes(os.urandom(4)) if lazy.again else 1)  # type: ignore[attr-defined]
    return stacked(keras.layers.Dense(6, kernel_initializer=initializer), keras.layers.Dense(1), optimizer="adam")


def test_a_model_that_is_built_by_its_first_step(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(lazy, "again", False, raising=False)
    expected = train(None, case=lazy)
    killed(train, tmp_path, [lambda: kill(3)], case=lazy)
    monkeypatch.setattr(lazy, "again", True)
    assert_equally_trained(expected, train(tmp_path, case=lazy), tolerance=0.0)


LOSSY = AllReduce(compressor="HorovodCompressorEF")


def test_what_compressors_keep(tmp_path: Path, caplog):
    two = {"replicas": 2, "strategy": LOSSY}
    assert_equally_trained(train(None, **two), interrupted(tmp_path, (4,), **two), tolerance=0.0)
    train(tmp_path, replicas=2, strategy="PS", epochs=EPOCHS + 1)
    assert "The compressors start anew" in caplog.text


def test_another_strategy_and_another_cluster(tmp_path: Path):
    settings = [
        {"replicas": 2, "strategy": "AllReduce"}, {"replicas": 3, "strategy": "PartitionedPS"}, {"replicas": 1},
        {"replicas": 2, "strategy": "PS"},
    ]
    case = lambda: of_layers(tanh(6), DENSE(1))  # noqa: E731
    found = interrupted(tmp_path, (4, 3, 5), settings=settings, case=case)
    assert_equally_trained(train(None, case=case), found, TOLERANCE)


def test_a_longer_training_begins_with_the_complete_one(tmp_path: Path):
    train(tmp_path, epochs=1)
    assert_equally_trained(never_killed(), train(tmp_path, epochs=EPOCHS), tolerance=0.0)
    with pytest.raises(SessionError, match="holds a training that this program has completed already"):
        train(tmp_path, epochs=EPOCHS)


def test_files_that_are_not_complete(tmp_path: Path, caplog):
    """One that is cut off and one with a changed byte are left out; the state before them is taken."""
    killed(train, tmp_path, [lambda: kill(5)], keep=3)
    files = sorted(tmp_path.glob("*.resume"))
    assert len(files) == 3
    files[2].write_bytes(files[2].read_bytes()[:-40])
    content = bytearray(files[1].read_bytes())
    content[content.index(b'"tree"')] ^= 1
    files[1].write_bytes(content)
    (tmp_path / "state-00000009.partial").write_bytes(b"begun")
    first = files[0].read_bytes()
    assert_equally_trained(never_killed(), train(tmp_path, keep=99), tolerance=0.0)
    assert f"{files[2].name} is not complete" in caplog.text and f"{files[1].name} is not complete" in caplog.text
    assert files[0].read_bytes() == first and not list(tmp_path.glob("*.partial"))
    for file in tmp_path.glob("*.resume"):
        file.write_bytes(b"")
    with pytest.raises(SessionError, match=r"none of its .* states can be read .* Delete the folder"):
        train(tmp_path)


def test_a_changed_bit_is_noticed_or_changes_nothing(tmp_path: Path):
    """Some bytes of a file, such as the time of writing, say nothing of the state; some claim that it is encrypted."""
    tree, arrays = {"step": 3, "seeds": [1, 2]}, [np.arange(3.0), np.ones((2, 1), np.float32)]
    files = StateFiles(tmp_path, keep=1)
    files.begin(tree, arrays)()
    (path,) = tmp_path.glob("*.resume")
    content, noticed = path.read_bytes(), 0
    for position, bit in itertools.product(range(len(content)), (1, 8)):
        changed = bytearray(content)
        changed[position] ^= bit
        path.write_bytes(changed)
        try:
            found = files.newest()
        except SessionError:
            noticed += 1
        else:
            assert found.tree == tree, position
            for read, written in zip(found.arrays, arrays, strict=True):
                assert read.dtype == written.dtype and np.array_equal(read, written), position
    assert noticed > len(content)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "batch_size": ({"batch_size": 5}, r"fit\(batch_size=...\): 4 in the saved training, 5 in this one"),
    "data": ({"y": lambda: data()[1] + 1.0}, r"data, y\[0\]: float64\[24,1\], checksum .* in the saved training"),
    "optimizer": ({"case": lambda: build(optimizer=keras.optimizers.Adam(0.1))},
                  r"compile\(optimizer=...\), learning rate: 0.001"),
    "model": ({"case": lambda: of_layers(keras.Input((5,)), DENSE(7), DENSE(1))},
              r"layer 1 of the model: Dense, checksum \w+ in the saved training, Dense, checksum"),
    "lazy model": ({"case": lambda: of_layers(DENSE(6), DENSE(1), DENSE(1))},
                   r"layer \d of the model: \w+, checksum \w+ in the saved training, nothing in"),
    "epochs": ({"epochs": 1}, "in epoch 2, and this fit has 1 epochs. Pass epochs as before, or more"),
}  # fmt: skip


@pytest.fixture(scope="module")
def killed_in_the_second_epoch(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    killed(train, folder, [lambda: kill(8)])
    return folder


@pytest.mark.parametrize("name", OTHERS)
def test_another_training_is_refused(name: str, killed_in_the_second_epoch: Path):
    changed, message = OTHERS[name]
    before = {path: path.read_bytes() for path in killed_in_the_second_epoch.iterdir()}
    with pytest.raises(SessionError, match=message):
        train(killed_in_the_second_epoch, **changed)
    assert {path: path.read_bytes() for path in killed_in_the_second_epoch.iterdir()} == before


def test_what_else_is_refused(tmp_path: Path):
    model = seeded(build)
    x, y = data()
    with pytest.raises(ValueError, match=r"Resume works with DistributedModel.fit only: wrap the model"):
        model.fit(x, y, verbose=0, callbacks=[Resume(tmp_path)])
    with pytest.raises(ValueError, match=r"expected a number of batches above 0, 'epoch' or 'auto'. Did you mean 'ep"):
        Resume(tmp_path, every="epochs")
    with distributed(model) as front:
        def inner(batch: int, logs: Any) -> None:
            with distributed(seeded(build)) as other, pytest.raises(SessionError, match="another fit uses this folder"):
                other.fit(x, y, verbose=0, callbacks=[Resume(tmp_path)])

        callbacks = keras.callbacks
        with pytest.raises(ValueError, match=r"expected one Resume callback. Received: 2"):
            front.fit(x, y, callbacks=[Resume(tmp_path), Resume(tmp_path)])
        with pytest.raises(ValueError, match="BackupAndRestore and Resume both decide where the training begins"):
            front.fit(x, y, callbacks=[Resume(tmp_path), callbacks.BackupAndRestore(tmp_path / "backup")])
        front.fit(x, y, verbose=0, callbacks=[callbacks.LambdaCallback(on_train_batch_begin=inner), Resume(tmp_path)])


@pytest.mark.quick("2")
@pytest.mark.parametrize("kills", [2, 10])
def test_a_program_that_is_killed_again_and_again(kills: int, tmp_path: Path):
    """By SIGKILL, at random moments, states being written in the background."""
    found = json.loads(printed_by("killed", tmp_path, kills, timeout=900).splitlines()[-1])
    assert found["later"] >= kills // 2 and found["numbers"] > 10
    assert not found["differ"]
