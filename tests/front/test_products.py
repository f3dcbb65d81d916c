"""Large dense layers multiply once for all replicas that share memory: forward, backward and for their gradients."""

from __future__ import annotations

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from tests.support.compare import assert_same

EXAMPLES, WIDTH = 9, 512
ARGUMENTS = {"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0}


def large_model(regularizer=None) -> keras.Model:
    scaled = keras.layers.EinsumDense("ab,b->ab", (WIDTH,), name="scaled")
    large = keras.layers.Dense(WIDTH, activation="tanh", kernel_regularizer=regularizer, name="large")
    return keras.Sequential([keras.Input((WIDTH,)), scaled, large, keras.layers.Dense(2, name="small")], name="wide")


def train(share_memory: bool | None, replicas: int = 3, regularizer=None):
    """Weights after a few uneven steps, and of whom the step's products are: with the kernel, and for its gradient."""
    keras.utils.set_random_seed(5)
    model = large_model(regularizer)
    model.compile("adam", "mse")
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(EXAMPLES, WIDTH)), rng.normal(size=(EXAMPLES, 2))
    found: tuple[list[str], list[str]] = [], []
    if share_memory is None:
        model.fit(x, y, **ARGUMENTS)
    else:
        found = products_of(model, x, y, share_memory, replicas)
    return {variable.path: variable.numpy() for variable in model.variables}, *found


def products_of(model: keras.Model, x, y, share_memory: bool, replicas: int) -> tuple[list[str], list[str]]:
    """Of whom the products with the large layer's kernel are, after a fit, and those that are its gradient."""
    found: tuple[list[str], list[str]] = [], []
    with DistributedModel(model, ResourceSpec.local(cpus=replicas), "AllReduce", share_memory) as dm:
        dm.fit(x, y, **ARGUMENTS)
        step = next(iter(dm._driver.functions["train"]._known.values()))[0][1]
        for node in step.graph.graph_def.node:
            if node.op == "MatMul" and "large" in node.name:
                found[node.attr["transpose_a"].b].append(node.name.partition("/")[0])
    return sorted(found[0]), sorted(found[1])


def each_of(replicas: int, times: int = 1) -> list[str]:
    return sorted(f"replica{index}" for index in range(replicas) for _ in range(times))


@pytest.mark.parametrize("replicas", [2, 3])
def test_one_product_of_all_rows_with_one_devices_numbers(replicas: int, float64):
    together, with_kernel, gradients = train(share_memory=True, replicas=replicas)
    assert (with_kernel, gradients) == (["at_once", "at_once"], ["reduced"])
    assert_same(train(share_memory=None)[0], together)


def test_replicas_with_memories_of_their_own_multiply_their_own_rows(float64):
    apart, with_kernel, gradients = train(share_memory=False)
    assert (with_kernel, gradients) == (each_of(3, 2), each_of(3))
    assert_same(train(share_memory=None)[0], apart)


def test_a_gradient_with_a_regularizers_part_is_no_product(float64):
    together, with_kernel, gradients = train(share_memory=True, replicas=2, regularizer="l2")
    assert (with_kernel, gradients) == (["at_once", "at_once"], each_of(2))
    assert_same(train(share_memory=None, regularizer="l2")[0], together)


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


def test_tensors_of_names_that_look_alike_are_stacked_apart(float64):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(EXAMPLES, 2 * WIDTH)), rng.normal(size=(EXAMPLES, 2))

    def trained(wrap):
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((2 * WIDTH,)), Halves(), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        with wrap(model) as front:
            front.fit(x, y, **ARGUMENTS)
        return {variable.path: variable.numpy() for variable in model.variables}

    two = ResourceSpec.local(cpus=2)
    assert_same(trained(nullcontext), trained(lambda model: DistributedModel(model, two, "AllReduce")))


def test_rows_of_sequences_are_not_moved(float64):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((6, WIDTH)), keras.layers.Dense(WIDTH, name="large")])
    model.compile("sgd", "mse")
    found = products_of(model, np.ones((4, 6, WIDTH)), np.ones((4, 6, WIDTH)), share_memory=True, replicas=2)
    assert found == (each_of(2), each_of(2))


def test_flat_rows_of_images_are_rows_of_examples(float64):
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Conv2D(8, 1), keras.layers.Flatten(), keras.layers.Dense(WIDTH, name="large")]
    model = keras.Sequential([keras.Input((8, 8, 2)), *layers])
    model.compile("sgd", "mse")
    found = products_of(model, np.ones((4, 8, 8, 2)), np.ones((4, WIDTH)), share_memory=True, replicas=2)
    assert found == (["at_once", "at_once"], ["reduced"])
