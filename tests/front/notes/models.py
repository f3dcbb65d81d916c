"""Small models with one part that treats examples together, and the parts that several tests put there."""

import keras
import tensorflow as tf
from keras import layers, ops

from tests.support.layers import Does
from tests.support.plans import numbers

X, Y = numbers(5), numbers(1)


def size(x):
    """The number of examples."""
    return tf.shape(x)[0]


def error(y, p):
    return tf.square(y - p)


def centred(x):
    return x - tf.reduce_mean(x, axis=0)


def dense(units=1):
    return lambda: keras.Sequential([keras.Input((5,)), layers.Dense(units, name="out")])


def holding(function, name="odd"):
    """Builds a model with a layer that applies a function to four numbers of each example."""
    first, last = layers.Dense(4, activation="tanh", name="first"), layers.Dense(1, name="last")
    return lambda: keras.Sequential([keras.Input((5,)), first, Does(function, name), last])


def unknown(y_true, y_pred):
    """A loss of which nothing shows how it counts."""
    factor = tf.numpy_function(lambda value: value.std(), [y_true], y_true.dtype, False)
    return tf.reduce_mean(error(y_true, y_pred)) * tf.ensure_shape(factor, ())


def r2(y_true, y_pred):
    """One number of the whole batch."""
    return 1 - ops.sum(ops.square(y_true - y_pred)) / ops.sum(ops.square(y_true - ops.mean(y_true)))


def spread(y_true, y_pred):
    """One number of the whole batch, of values that trained weights change."""
    return ops.sum(ops.square(y_pred - ops.mean(y_pred)))


def root(y_true, y_pred):
    """A root of a mean, which is no mean."""
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


class Keeps(keras.metrics.Metric):
    """A metric that writes a variable by a function."""

    def __init__(self, write, name, dtype=None, shape=()):
        super().__init__(name=name)
        self.write = write
        self.kept = self.add_variable(shape, "zeros", dtype=dtype, name="kept")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.write(self.kept, y_true, y_pred)

    def reset_state(self):
        self.kept.assign(ops.zeros_like(self.kept))

    def result(self):
        return ops.sum(ops.cast(self.kept, "float64"))
