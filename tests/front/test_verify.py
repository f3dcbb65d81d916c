"""`verify` compares all replicas with one device and leaves the model as it was."""

from __future__ import annotations

import keras
import pytest

from tests.support.compare import assert_same, named
from tests.support.distributed import distributed
from tests.support.models import DENSE, dense_data
from tests.support.training import seeded


def _compiled() -> keras.Model:
    model = seeded(DENSE.build)
    model.compile(**DENSE.compile_arguments("adam"))
    return model


def test_a_table_of_every_variable_and_the_state_as_before():
    model, data = _compiled(), dense_data()
    before = named(model.weights)
    with distributed(model, replicas=3) as front:
        table = front.verify(data.x, data.y, steps=2)
    assert "2 steps" in table
    assert all(weight.path.partition("/")[2] in table for weight in model.trainable_weights)
    assert_same(before, named(model.weights), tolerance=0.0)
    assert int(model.optimizer.iterations) == 0


def test_what_differs_is_named():
    class Drawn(keras.layers.Dropout):
        """Draws other numbers on every replica."""

    model, data = _compiled(), dense_data()
    noisy = keras.Sequential([keras.Input(data.x.shape[1:]), Drawn(0.5, seed=3), *model.layers], name="noisy")
    noisy.compile(**DENSE.compile_arguments("sgd"))
    with distributed(noisy) as front, pytest.raises(ValueError, match=r"differs from one device in dense/first/kernel"):
        front.verify(data.x, data.y)
