"""Means and sums of numbers of which each stands for a batch, as custom steps keep them, are the whole batch's."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.models import Data, ReferenceModel
from tests.support.steps import OwnLoss
from tests.support.training import assert_equal_training


class Tracked(OwnLoss, keras.Model):
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

    def returned(self, x, loss):
        self.plainly.update_state(loss)
        self.weighted.update_state(loss, sample_weight=tf.shape(x)[0])
        self.summed.update_state(loss)
        self.batches.update_state(1.0)
        self.seen.update_state(tf.shape(x)[0])
        return {metric.name: metric.result() for metric in self.metrics}


def _data() -> Data:
    x = np.random.default_rng(0).normal(size=(22, 3))
    return Data(x, x**2)


def test_means_of_losses():
    found = assert_equal_training(ReferenceModel("tracked", Tracked, _data, dict), optimizer="sgd", replicas=3)
    assert set(found.result) == {"plainly", "weighted", "summed", "batches", "seen"}
    assert (found.result["batches"] == 4.0).all() and (found.result["seen"] == 22.0).all()
