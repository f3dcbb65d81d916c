"""State that is reached without the model's Keras variables being looked at: bare variables, graphs of others."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same, named
from tests.support.models import DENSE, ReferenceModel, even_data
from tests.support.training import QUIET, assert_equal_training, distributed, fit, seeded


class Annealed(keras.Model):
    """Weighs a penalty by a bare TensorFlow variable, which a callback raises."""

    def __init__(self):
        super().__init__(name="annealed")
        self.out = keras.layers.Dense(1, name="out")
        self.beta = tf.Variable(0.0, trainable=False, dtype="float64")

    def call(self, x):
        y = self.out(x)
        self.add_loss(self.beta * tf.reduce_mean(tf.square(y)))
        return y


def test_a_bare_variable_that_a_callback_changes_counts():
    def program(front, model):
        raise_it = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: model.beta.assign(0.5 * epoch))
        return fit(front, even_data(), callbacks=[raise_it])

    reference = ReferenceModel("annealed", Annealed, even_data, lambda: {"loss": "mse"})
    assert_equal_training(reference, program, optimizer="sgd")


def test_a_function_of_others_that_writes_weights_counts_each_time():
    def program(front, model):
        @tf.function
        def clip():
            for variable in model.trainable_variables:
                variable.assign(tf.clip_by_value(variable, -0.2, 0.2))

        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: clip())]
        return fit(front, even_data(), callbacks=callbacks)

    assert_equal_training(DENSE, program, optimizer="sgd")


def test_a_model_over_the_same_layers_predicts_with_current_weights():
    data = even_data()
    model = seeded(DENSE.build)
    model.compile("sgd", "mse", jit_compile=False)
    extractor = keras.Model(model.inputs, model.layers[-1].output)
    pairs = []

    def compare(epoch, logs):
        pairs.append((extractor.predict(data.x, verbose=0), np.asarray(model(data.x))))

    with distributed(model) as front:
        callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=compare)]
        front.fit(data.x, data.y, epochs=3, callbacks=callbacks, **QUIET)
    for predicted, called in pairs:
        np.testing.assert_allclose(predicted, called, rtol=1e-12)
    assert not np.allclose(pairs[0][0], pairs[-1][0])


class TrainsItself(keras.Sequential):
    """Updates its weights by hand."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        for gradient, variable in zip(gradients, self.trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss}


def test_weights_that_are_trained_past_the_models_optimizers_are_refused():
    data = even_data()
    model = TrainsItself(seeded(DENSE.build).layers)
    model.compile(jit_compile=False)
    before = named(model.weights)
    with distributed(model) as front, pytest.raises(CaptureError, match=r"outside an optimizer of the model"):
        front.fit(data.x, data.y, **QUIET)
    assert_same(before, named(model.weights), tolerance=0.0)


def test_an_optimizer_deep_in_a_container_is_found():
    class Nested(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            variables = self.trainable_variables
            self.chosen["deep"][0].apply(tape.gradient(loss, variables), variables)
            return {"loss": loss, "rows": tf.shape(x)[0]}

    def build() -> keras.Model:
        model = Nested(seeded(DENSE.build).layers)
        model.chosen = {"deep": [keras.optimizers.Adam(0.01)]}
        model.compile(jit_compile=False)
        return model

    assert "rows" in assert_equal_training(build, data=even_data()).result
