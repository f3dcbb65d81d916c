"""After a failure a training has the batches that it would have had: in the epoch it goes on in, and in later ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_keras.callbacks import Resume
from tests.conftest import OF_KERAS
from tests.support.compare import assert_same, named
from tests.support.training import distributed, seeded

pytestmark = [
    pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(OF_KERAS, "ignore:Your input ran out of data"),
]  # fmt: skip


class Killed(BaseException):
    """Ends a training where it is, as a signal does."""


def kill(steps: int) -> keras.callbacks.Callback:
    """End the training before a step, counted from its beginning."""
    ran = iter(range(10**6))

    def end(batch: int, logs: Any) -> None:
        if next(ran) == steps:
            raise Killed

    return keras.callbacks.LambdaCallback(on_train_batch_begin=end)


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def fit(source: Any, folder: Path | None, *callbacks: Any, **options: Any) -> dict[str, np.ndarray]:
    """One start of a program with one `fit`; the weights, which depend on the order of the batches."""
    keras.utils.set_random_seed(2)
    model, x = seeded(build), source()
    own = [] if folder is None else [Resume(folder, every=1)]
    with distributed(model, replicas=1) as front:
        front.fit(x, verbose=0, shuffle=False, callbacks=[*own, *callbacks], **{"epochs": 4, **options})
    return named(model.weights)


def rows(first: int = 0, last: int = 12) -> tf.data.Dataset:
    draws = np.random.default_rng(3)
    x, y = draws.normal(size=(20, 5)), draws.normal(size=(20, 1))
    return tf.data.Dataset.from_tensor_slices((x[first:last], y[first:last]))


def in_python(x: Any, y: Any) -> Any:
    return tf.ensure_shape(tf.numpy_function(lambda row: row * 2.0, [x], tf.float64), (5,)), y


SOURCES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "shuffled twice": (lambda: rows().shuffle(12).map(lambda x, y: (2.0 * x, y)).shuffle(4).batch(4).prefetch(2), {}),
    "concatenated": (
        lambda: rows(0, 5).concatenate(rows(5).shuffle(9)).batch(4).repeat(), {"steps_per_epoch": 3},
    ),
    "repeated": (lambda: rows().shuffle(12, seed=4).repeat(2).batch(8), {}),
    "cached": (lambda: rows().shuffle(12).cache().shuffle(4).batch(4), {}),
    "in python": (lambda: rows(0, 5).concatenate(rows(5).shuffle(9)).map(in_python).shuffle(4).batch(4), {}),
}  # fmt: skip


@pytest.mark.quick("shuffled twice", "cached")
@pytest.mark.parametrize("name", SOURCES)
def test_shuffles_that_draw_their_seeds_at_different_moments(name: str, tmp_path: Path):
    """TensorFlow makes an inner iterator when it is first needed, and its seeds are drawn then."""
    source, options = SOURCES[name]
    expected = fit(source, None, **options)
    for steps in (1, 3):
        with pytest.raises(Killed):
            fit(source, tmp_path, kill(steps), **options)
    assert_same(expected, fit(source, tmp_path, **options), 0.0)
