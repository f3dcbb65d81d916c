"""Steps that cannot be divided into replicas and updates are refused with the reason, and change nothing."""

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same, named
from tests.support.layers import Does
from tests.support.models import DENSE, ReferenceModel, dense_data, even_data, ready
from tests.support.steps import OwnLoss, OwnStep
from tests.support.training import QUIET, assert_equal_training, distributed, seeded


class WritesWeights(OwnStep):
    """Writes a trainable variable without an optimizer, from the batch."""

    def train_step(self, data):
        logs = super().train_step(data)
        self.first.kernel.assign(self.first.kernel + tf.reduce_mean(data[0]))
        return logs


class TracksInAFunction(OwnStep):
    """Updates a metric inside a function of its own, which outlives the trace of the step."""

    @tf.function
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        self.tracker.update_state(loss)
        return tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        self.optimizer.apply(self.gradients(*data), self.trainable_variables)
        return {"squares": self.tracker.result()}


class TrainsByHand(OwnLoss, OwnStep):
    """Updates its weights without an optimizer."""

    def descend(self, gradients):
        for gradient, variable in zip(gradients, self.trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)


def _model(kind: Callable[[], keras.Model]) -> keras.Model:
    model = ready(seeded(kind), keras.optimizers.SGD(0.1, name="sgd"), jit_compile=False)
    model(dense_data().x)  # builds it
    return model


@pytest.mark.parametrize(("kind", "reason"), [
    (WritesWeights, "is written outside an optimizer, with a value that needs"),
    (TrainsByHand, "outside an optimizer of the model"),
    (TracksInAFunction, "a metric is updated, or a loss computed, .* inside a tf.function"),
])  # fmt: skip
def test_after_a_refusal_the_model_is_as_before_and_plain_keras_trains_it(kind: type[keras.Model], reason: str):
    data, model, expected = even_data(), _model(kind), _model(kind)
    with distributed(model) as front, pytest.raises(CaptureError, match=reason):
        front.fit(data.x, data.y, epochs=1, **QUIET)
    kinds = [one.fit(data.x, data.y, epochs=1, **QUIET).history for one in (expected, model)]
    assert kinds[0] == kinds[1]
    assert_same(named(expected.weights), named(model.weights), tolerance=0.0)


class DifferentiatesPython(keras.layers.Layer):
    """Squares its input in Python, and asks TensorFlow for the gradient."""

    def __init__(self, where: str):
        super().__init__(name="python")
        self.where = where

    def call(self, x):
        def squared(x):
            found = tf.py_function(lambda rows: rows**2, [x], x.dtype)
            return tf.ensure_shape(found, x.shape)

        if self.where == "in a function":
            squared = tf.function(squared)
        if self.where == "in a branch":
            return tf.cond(tf.reduce_sum(x**2) < 1e9, lambda: squared(x), lambda: x)
        return squared(x)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.quick("in the step")
@pytest.mark.parametrize("where", ["in the step", "in a function", "in a branch"])
def test_gradients_of_python_are_refused_on_several_replicas(where: str):
    """TensorFlow would take one replica's forward pass for another's, or find none, as it happens."""
    dense = keras.layers.Dense
    plain, model = (
        seeded(lambda: keras.Sequential([keras.Input((5,)), dense(3), DifferentiatesPython(where), dense(1)]))
        for _ in range(2)
    )
    for each in (plain, model):
        each.compile("sgd", "mse", jit_compile=False)
    data, before = dense_data(), model.get_weights()
    with distributed(model, replicas=2) as front:
        with pytest.raises(CaptureError, match=r"gradient of a tf\.py_function.*tf\.custom_gradient, or train with"):
            front.fit(data.x, data.y, **QUIET)
        assert all(map(np.array_equal, before, model.get_weights()))
    plain.fit(data.x, data.y, **QUIET)
    with distributed(model, replicas=1) as front:
        front.fit(data.x, data.y, **QUIET)
    assert all(map(np.array_equal, plain.get_weights(), model.get_weights()))


def test_python_that_nothing_is_derived_from_trains_on_several_replicas():
    """What Python computes is looked at, not differentiated, in a scope with a misleading name."""

    def looks(x):
        with tf.name_scope("image_gradients"):
            squared = tf.py_function(lambda rows: rows**2, [x], x.dtype)
            return x + tf.stop_gradient(tf.ensure_shape(squared, x.shape))

    def build() -> keras.Model:
        dense = keras.layers.Dense
        return keras.Sequential([keras.Input((5,)), dense(3), Does(looks), dense(1)])

    assert_equal_training(ReferenceModel("looks", build, dense_data, DENSE.settings), optimizer="sgd")


def _spectral() -> keras.Model:
    """Every call divides the wrapped layer's kernel by its norm, in place."""
    wrapped = keras.layers.Dense(4, name="wrapped", trainable=False)
    layers = [keras.layers.SpectralNormalization(wrapped, name="spectral"), keras.layers.Dense(1, name="out")]
    return keras.Sequential([keras.Input((5,), name="x"), *layers], name="spectral_model")


def test_a_frozen_layer_that_writes_its_kernel_trains_like_one_device():
    reference = ReferenceModel("spectral", _spectral, dense_data, lambda: {"loss": "mse"})
    assert_equal_training(reference, replicas=3)
