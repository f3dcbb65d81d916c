"""Data that functions make, and a small model for images of TensorFlow's."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.support.models import ready, stacked


class Batches(keras.utils.PyDataset):
    """As many batches as it is told, of which a function makes each; without a number it never ends."""

    def __init__(self, make: Callable[[int], Any], count: int | None, **settings: Any) -> None:
        super().__init__(**settings)
        self.make, self.count = make, count

    @property
    def num_batches(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


def made(number):
    """An image that a function of TensorFlow makes: 4000 bytes of 8."""
    x = tf.random.stateless_normal((500,), tf.stack([number, 7]), dtype=tf.float64)
    return x, tf.reduce_sum(x, keepdims=True)


def untuned(dataset):
    """The dataset, tuned on no machine: so the tests leave every iterator of this process (`tests/conftest.py`)."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def small():
    """A model of such images that does not learn."""
    return stacked(keras.Input((500,)), keras.layers.Dense(1, name="dense"), optimizer=keras.optimizers.SGD(0.0))


def learning():
    """The same model, learning."""
    return ready(small(), keras.optimizers.SGD(1e-3), "mse")
