"""A model that nobody holds any more is let go of, with its weights and all graphs of its steps."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from tests.support.models import BY_NAME, ready
from tests.support.training import distributed, fit


class Saturating(keras.layers.Layer):
    """Has a custom gradient, which TensorFlow keeps by itself for ever."""

    def call(self, x):
        @tf.custom_gradient
        def saturating(x):
            return tf.tanh(x), lambda upstream: upstream * 0.5

        return saturating(x)

    def compute_output_shape(self, input_shape):
        """So that Keras does not find out by a call in a graph of its own, which stays."""
        return input_shape


def _with_custom_gradient() -> keras.Model:
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(1)(Saturating()(keras.layers.Dense(4)(inputs))))
    return ready(model, "adam", "mse", metrics=["mae"], jit_compile=False)


def _own_step() -> keras.Model:
    return ready(BY_NAME["own_step"].build(), "adam", jit_compile=False)


def _graphs() -> set[int]:
    gc.collect()
    return {id(found) for found in gc.get_objects() if isinstance(found, FuncGraph)}


@pytest.mark.long
@pytest.mark.parametrize("build", [_with_custom_gradient, _own_step])
def test_nothing_of_a_trained_model_stays(build):
    def train() -> list[weakref.ref]:
        model = build()
        with distributed(model) as front:
            fit(front, BY_NAME["own_step"].data(), epochs=1)
            front.predict(np.ones((3, 5)), verbose=0)
        return [weakref.ref(held) for held in (model, model.optimizer, front)]

    train()  # TensorFlow's own functions are traced once
    keras.utils.clear_session()
    before = _graphs()
    held = train()
    keras.utils.clear_session()
    assert not _graphs() - before
    assert [each() for each in held] == [None, None, None]
