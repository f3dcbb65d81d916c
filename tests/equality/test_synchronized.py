"""`BatchNormalization(synchronized=True)` has the whole batch's statistics, so everything equals one device."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.support.compare import assert_equally_trained
from tests.support.distributed import distributed
from tests.support.models import dense_data
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


@pytest.mark.parametrize("base", [keras.Sequential, NoScaling])
@pytest.mark.parametrize("replicas, share_memory", [(2, False), (3, False), (2, True)])
def test_statistics_of_the_whole_batch(base: type[keras.Sequential], replicas: int, share_memory: bool):
    results = []
    for wrap in (False, True):
        model = seeded(lambda: _model(base))
        model.compile(keras.optimizers.Adam(0.01, name="adam"), "mse", jit_compile=False)
        if wrap:
            with distributed(model, replicas=replicas, share_memory=share_memory) as front:
                history = fit(front, dense_data())
        else:
            history = fit(model, dense_data())
        results.append(trained(model, history, [model.optimizer]))
    assert_equally_trained(*results)
