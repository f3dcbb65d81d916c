"""`BatchNormalization(synchronized=True)` has the whole batch's statistics, so everything equals one device."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_equally_trained
from tests.support.distributed import distributed
from tests.support.models import Data, dense_data
from tests.support.training import fit, seeded, trained


class NoScaling(keras.Sequential):
    """Its own step, which never tells the optimizer to scale the loss."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def _model(base: type[keras.Sequential]) -> keras.Model:
    return base([
        keras.Input((dense_data().x.shape[1],)),
        keras.layers.Dense(6, use_bias=False, name="first"),
        keras.layers.BatchNormalization(synchronized=True, momentum=0.5, name="norm"),
        keras.layers.Activation("tanh"),
        keras.layers.Dense(dense_data().y.shape[1], name="out"),
    ], name="synchronized")


def _masked() -> keras.Model:
    """Of sequences of different lengths, some of which are empty."""
    return keras.Sequential([
        keras.Input((4, 3)),
        keras.layers.Masking(),
        keras.layers.BatchNormalization(synchronized=True, momentum=0.5, name="norm"),
        keras.layers.LSTM(3, name="lstm"),
        keras.layers.Dense(1, name="out"),
    ], name="masked")


def _sequences() -> Data:
    random = np.random.default_rng(4)
    x, y = random.normal(size=(22, 4, 3)), random.normal(size=(22, 1))
    for row, length in zip(x, random.integers(0, 5, 22), strict=True):
        row[length:] = 0.0
    return Data(x, y)


@pytest.mark.every(2)
@pytest.mark.parametrize("base", [keras.Sequential, NoScaling])
@pytest.mark.parametrize("replicas, share_memory", [(2, False), (3, False), (2, True)])
def test_statistics_of_the_whole_batch(base: type[keras.Sequential], replicas: int, share_memory: bool):
    _check(lambda: _model(base), dense_data(), replicas, share_memory)


@pytest.mark.every(2)
@pytest.mark.parametrize("replicas, share_memory", [(1, False), (2, True), (3, False)])
def test_statistics_of_what_a_mask_leaves(replicas: int, share_memory: bool):
    _check(_masked, _sequences(), replicas, share_memory)


def _check(build: Callable[[], keras.Model], data: Data, replicas: int, share_memory: bool):
    results = []
    for wrap in (False, True):
        model = seeded(build)
        model.compile(keras.optimizers.Adam(0.01, name="adam"), "mse", jit_compile=False)
        if wrap:
            with distributed(model, replicas=replicas, share_memory=share_memory) as front:
                history = fit(front, data)
        else:
            history = fit(model, data)
        results.append(trained(model, history, [model.optimizer]))
    assert_equally_trained(*results)
