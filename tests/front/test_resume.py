"""A training that was ended at any step and started again with `Resume` ends with the numbers of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_core.strategy import AllReduce
from autodist_keras.callbacks import Resume
from tests.support.compare import TOLERANCE, Trained, assert_equally_trained
from tests.support.training import SEED, distributed, run, seeded

EXAMPLES, BATCH, EPOCHS = 22, 4, 3
STEPS = 6
"""Batches of an epoch. The last one has two examples."""


class Killed(Exception):
    """Ends a training at a step, as a signal would."""


def kill(at: int) -> keras.callbacks.Callback:
    """A callback that ends the training before its step number `at`, counted over all epochs of this process."""
    steps = iter(range(1000))

    def begin(batch: int, logs: Any) -> None:
        if next(steps) == at:
            raise Killed

    return keras.callbacks.LambdaCallback(on_train_batch_begin=begin)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(EXAMPLES, 5))
    return x, np.sin(x[:, :1])


def build() -> keras.Model:
    """A model with dropout, whose seed is state, and metrics that Keras makes in the first step."""
    model = keras.Sequential([
        keras.Input((5,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dropout(0.3, seed=7),
        keras.layers.Dense(1),
    ])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def train(folder: Path | None, callbacks=(), *, case=build, fit=None, replicas=1, strategy=None, keep=2, **arguments):
    """One process's part of a training: from its beginning, or from the newest state of a folder."""
    model = seeded(case)
    own = [] if folder is None else [Resume(folder, every=1, keep=keep)]

    def program(front, model):
        x, y = data()
        given = {"x": x, "y": y, "batch_size": BATCH, "epochs": EPOCHS, **arguments}
        given = {name: value() if callable(value) else value for name, value in given.items() if value is not None}
        history = front.fit(**given, verbose=0, callbacks=[*own, *(make() for make in callbacks)])
        return {"history": history.history, "epochs": history.epoch}

    with distributed(model, strategy, replicas=replicas) as front:
        return run(program, front, model)


def interrupted(folder: Path, kills: tuple[int, ...], callbacks=(), settings=None, **arguments) -> Trained:
    """A training that is ended again and again, each time so many steps after its beginning, and then completed."""
    for index, at in enumerate(kills):
        with pytest.raises(Killed):
            train(folder, [*callbacks, lambda at=at: kill(at)], **{**arguments, **(settings or [{}] * 9)[index]})
    return train(folder, callbacks, **{**arguments, **(settings or [{}] * 9)[len(kills)]})


@pytest.mark.parametrize("kills", [(2,), (STEPS, 1, 0, 8)], ids=["once", "often"])
def test_arrays_in_a_shuffled_order(kills, tmp_path: Path):
    """Bit for bit on one replica: weights, optimizer, dropout, the epoch's logs, the permutation."""
    expected = train(None)
    assert_equally_trained(expected, interrupted(tmp_path, kills), tolerance=0.0)
