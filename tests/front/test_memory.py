"""How many bytes of variables a training makes besides the model's own, and that all of it is let go of."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from tests.support.models import BY_NAME, DENSE, even_data, ready
from tests.support.training import compiled, distributed, fit

DATA = even_data()


def made() -> dict[int, int]:
    """The bytes of each variable of TensorFlow that exists in this process, by its identity."""
    gc.collect()
    return {
        id(each): int(np.prod(each.shape)) * each.dtype.size
        for each in gc.get_objects() if isinstance(each, tf.Variable)
    }


def bytes_of(variables) -> int:
    return sum(int(np.prod(each.shape)) * tf.as_dtype(each.dtype).size for each in variables)


@pytest.fixture
def model() -> keras.Model:
    model = compiled(DENSE)
    model.optimizer.build(model.trainable_variables)
    model.train_on_batch(DATA.x[:4], DATA.y[:4])
    return model


def further(model: keras.Model, strategy: str, **settings) -> tuple[int, int]:
    """The bytes of the variables that a training makes, while it has its session and after it is closed."""
    before = made()
    with distributed(model, strategy, **settings) as front:
        front.fit(DATA.x, DATA.y, batch_size=6, verbose=0)
        front.evaluate(DATA.x, DATA.y, verbose=0)
        front.predict(DATA.x, verbose=0)
        found = sum(size for each, size in made().items() if each not in before)
    return found, sum(size for each, size in made().items() if each not in before)


@pytest.mark.quick("1-AllReduce", "3-PS")
@pytest.mark.parametrize("strategy", ["AllReduce", "PS"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_replicas_with_one_memory_have_no_second_state(model, strategy: str, replicas: int):
    """Only what each replica writes on the side has a copy for each of them."""
    side = bytes_of(model.metrics_variables)
    while_open, closed = further(model, strategy, replicas=replicas, share_memory=None)
    assert while_open <= (replicas - 1) * side and closed == 0
    assert side < 0.2 * bytes_of(model.variables)


def test_each_further_memory_has_one_state_more(model):
    state = bytes_of([*model.variables, *model.optimizer.variables, *model.metrics_variables])
    further(model, "AllReduce", replicas=2, share_memory=False)  # makes what collectives need once in a process
    assert further(model, "AllReduce", replicas=2, share_memory=False) == (state, 0)


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
