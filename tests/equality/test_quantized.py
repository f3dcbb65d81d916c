"""Layers that compute in few bits, and layers that compute again what they have computed."""

import keras
import numpy as np
import pytest
from keras import layers

from tests.support.models import Data
from tests.support.training import assert_equal_training

RANDOM = np.random.default_rng(4)
X, Y = RANDOM.normal(size=(19, 8)), RANDOM.normal(size=(19, 2))


class Recomputed(layers.Layer):
    """A layer whose results are computed once more for the gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(6, activation="tanh")

    def build(self, shape: tuple) -> None:
        self.inner.build(shape)

    def call(self, inputs):
        return keras.remat(self.inner)(inputs)


def _of(kind: str) -> keras.Model:
    inputs = keras.Input((8,))
    hidden = Recomputed() if kind == "remat" else layers.Dense(6, activation="tanh")
    model = keras.Model(inputs, layers.Dense(2)(layers.LayerNormalization()(hidden(inputs))))
    if kind in ("int8", "float8"):
        for layer in model.layers:
            if isinstance(layer, layers.Dense):
                layer.quantize(kind)
    accumulating = {"gradient_accumulation_steps": 2} if kind == "float8" else {}
    model.compile(keras.optimizers.Adam(0.01, **accumulating), "mse", jit_compile=False)
    return model


KINDS = {"int8": lambda: _of("int8"), "float8": lambda: _of("float8"), "remat": lambda: _of("remat")}


@pytest.mark.quick("float8-PS-3")
@pytest.mark.parametrize(("kind", "strategy", "replicas"), [
    ("int8", "PartitionedPS", 2), ("float8", "PS", 3), ("float8", "AllReduce", 2), ("remat", "PS", 3),
    ("remat", "PartitionedPS", 2),
])
def test_training_equals_one_devices(kind: str, strategy: str, replicas: int):
    trained = assert_equal_training(KINDS[kind], data=Data(X, Y), strategy=strategy, replicas=replicas)
    if kind == "float8":
        # One device has seen the largest values of the whole batches.
        history = next(value for name, value in trained.weights.items() if name.endswith("inputs_amax_history"))
        assert history.max() == np.float32(np.abs(X).max())
