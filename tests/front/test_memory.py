"""How many bytes of variables a training makes besides the model's own."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.models import DENSE, even_data
from tests.support.training import compiled, distributed

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
