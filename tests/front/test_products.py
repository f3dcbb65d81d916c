"""Large dense layers multiply once for all replicas that share memory: forward, backward and for their gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.graphs import training_graph
from tests.support.models import Data, ReferenceModel, stacked
from tests.support.training import assert_equal_training, compiled

WIDTH = 512


def _large(regularizer=None) -> ReferenceModel:
    def build() -> keras.Model:
        scaled = keras.layers.EinsumDense("ab,b->ab", (WIDTH,), name="scaled")
        large = keras.layers.Dense(WIDTH, activation="tanh", kernel_regularizer=regularizer, name="large")
        layers = [keras.Input((WIDTH,)), scaled, large, keras.layers.Dense(2, name="small")]
        return keras.Sequential(layers, name="wide")

    return ReferenceModel("wide", build, _data, lambda: {"loss": "mse"})


def _data(width: int = WIDTH) -> Data:
    random = np.random.default_rng(2)
    return Data(random.normal(size=(9, width)), random.normal(size=(9, 2)))


def products_of(model: keras.Model, x, y, share_memory: bool, replicas: int) -> tuple[list[str], list[str]]:
    """Of whom the products with the large layer's kernel are, and those that are its gradient."""
    found: tuple[list[str], list[str]] = [], []
    for node in training_graph(model, x, y, share_memory=share_memory, replicas=replicas).graph_def.node:
        if node.op == "MatMul" and "large" in node.name:
            found[node.attr["transpose_a"].b].append(node.name.partition("/")[0])
    return sorted(found[0]), sorted(found[1])


def each_of(replicas: int, times: int = 1) -> list[str]:
    return sorted(f"replica{index}" for index in range(replicas) for _ in range(times))


@pytest.mark.quick("shared by three")
@pytest.mark.parametrize("share_memory, replicas, regularizer, with_kernel, gradients", [
    (True, 2, None, ["at_once", "at_once"], ["at_once"]),
    (True, 3, None, ["at_once", "at_once"], ["at_once"]),
    (True, 2, "l2", ["at_once", "at_once"], each_of(2)),
    (False, 3, None, each_of(3, 2), each_of(3)),
], ids=["shared by two", "shared by three", "with a regularizer's part", "memories of their own"])  # fmt: skip
def test_whose_the_products_are_and_one_devices_numbers(share_memory, replicas, regularizer, with_kernel, gradients):
    """One product of all rows where replicas share memory; a gradient with a regularizer's part is no product."""
    reference, data = _large(regularizer), _data()
    how = {"share_memory": share_memory, "replicas": replicas}
    assert products_of(compiled(reference), data.x, data.y, **how) == (with_kernel, gradients)
    assert_equal_training(reference, **how)


class Halves(keras.layers.Layer):
    """Large layers on two tensors of one kind, which TensorFlow calls `split:1` and `split_1`."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(WIDTH), keras.layers.Dense(WIDTH)

    def build(self, shape):
        self.first.build((None, WIDTH))
        self.second.build((None, WIDTH))

    def call(self, x):
        _, one = tf.split(x, 2, axis=1)
        other, _ = tf.split(tf.tanh(x), 2, axis=1)
        return self.first(one) + self.second(other)


def test_tensors_of_names_that_look_alike_are_stacked_apart():
    def build() -> keras.Model:
        return keras.Sequential([keras.Input((2 * WIDTH,)), Halves(), keras.layers.Dense(2)])

    halves = ReferenceModel("halves", build, lambda: _data(2 * WIDTH), lambda: {"loss": "mse"})
    assert_equal_training(halves, optimizer="sgd", share_memory=None)


def test_rows_of_sequences_are_not_moved():
    keras.utils.set_random_seed(5)
    model = stacked(keras.Input((6, WIDTH)), keras.layers.Dense(WIDTH, name="large"))
    found = products_of(model, np.ones((4, 6, WIDTH)), np.ones((4, 6, WIDTH)), share_memory=True, replicas=2)
    assert found == (each_of(2), each_of(2))


def test_flat_rows_of_images_are_rows_of_examples():
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Conv2D(8, 1), keras.layers.Flatten(), keras.layers.Dense(WIDTH, name="large")]
    model = stacked(keras.Input((8, 8, 2)), *layers)
    found = products_of(model, np.ones((4, 8, 8, 2)), np.ones((4, WIDTH)), share_memory=True, replicas=2)
    assert found == (["at_once", "at_once"], ["at_once"])
