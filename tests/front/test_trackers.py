"""Means and sums of numbers of which each stands for a batch, as custom steps keep them, are the whole batch's."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import relative_error
from tests.support.distributed import distributed
from tests.support.training import SEED


class Tracked(keras.Model):
    """The step of Keras's own guides: a loss by hand, a mean of it, and the same weighted by the number of examples."""

    def __init__(self):
        super().__init__(name="tracked")
        self.out = keras.layers.Dense(3, name="out")
        self.plainly = keras.metrics.Mean(name="plainly")
        self.weighted = keras.metrics.Mean(name="weighted")
        self.summed = keras.metrics.Sum(name="summed")
        self.batches = keras.metrics.Sum(name="batches")
        self.seen = keras.metrics.Sum(name="seen")

    @property
    def metrics(self):
        return [self.plainly, self.weighted, self.summed, self.batches, self.seen]

    def call(self, x):
        return self.out(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.plainly.update_state(loss)
        self.weighted.update_state(loss, sample_weight=tf.shape(x)[0])
        self.summed.update_state(loss)
        self.batches.update_state(1.0)
        self.seen.update_state(tf.shape(x)[0])
        return {metric.name: metric.result() for metric in self.metrics}


def _history(replicas: int | None) -> dict[str, list[float]]:
    keras.utils.set_random_seed(SEED)
    model = Tracked()
    model.compile(keras.optimizers.SGD(0.1))
    x = np.random.default_rng(0).normal(size=(22, 3))
    options = {"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0}
    if replicas is None:
        return model.fit(x, x**2, **options).history
    with distributed(model, replicas=replicas) as front:
        return front.fit(x, x**2, **options).history


@pytest.mark.parametrize("replicas", [2, 3])
def test_means_of_losses(replicas: int):
    expected, actual = _history(None), _history(replicas)
    assert set(expected) == {"plainly", "weighted", "summed", "batches", "seen"}
    assert expected["batches"] == [4.0, 4.0] and expected["seen"] == [22.0, 22.0]
    for name, values in expected.items():
        assert relative_error(np.array(values), np.array(actual[name])) <= 1e-12
