"""Kernel gradients of large dense layers are multiplied once for all replicas that share memory."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from tests.support.compare import assert_same

EXAMPLES, WIDTH = 9, 512


def large_model(regularizer=None) -> keras.Model:
    layer = keras.layers.Dense(WIDTH, activation="tanh", kernel_regularizer=regularizer, name="large")
    return keras.Sequential([keras.Input((WIDTH,)), layer, keras.layers.Dense(2, name="small")], name="wide")


def train(share_memory: bool | None, replicas: int = 3, regularizer=None):
    """Weights after a few uneven steps, and the products of the step's graph that are summed over all rows."""
    keras.utils.set_random_seed(5)
    model = large_model(regularizer)
    model.compile("adam", "mse")
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(EXAMPLES, WIDTH)), rng.normal(size=(EXAMPLES, 2))
    products: list[str] = []
    arguments = {"batch_size": 7, "epochs": 2, "shuffle": False, "verbose": 0}
    if share_memory is None:
        model.fit(x, y, **arguments)
    else:
        with DistributedModel(model, ResourceSpec.local(cpus=replicas), "AllReduce", share_memory) as dm:
            dm.fit(x, y, **arguments)
            step = next(iter(dm._functions["train"]._known.values()))[1]
            products = [
                node.name for node in step.graph.graph_def.node
                if node.op == "MatMul" and node.attr["transpose_a"].b and "large" in node.name
            ]
    return {variable.path: variable.numpy() for variable in model.variables}, products


@pytest.mark.parametrize("replicas", [2, 3])
def test_one_product_of_all_rows_with_one_devices_numbers(replicas: int, float64):
    together, products = train(share_memory=True, replicas=replicas)
    assert [name.partition("/")[0] for name in products] == ["reduced"]
    assert_same(train(share_memory=None)[0], together)


def test_replicas_with_memories_of_their_own_multiply_their_own_rows(float64):
    apart, products = train(share_memory=False)
    assert sorted(name.partition("/")[0] for name in products) == ["replica0", "replica1", "replica2"]
    assert_same(train(share_memory=None)[0], apart)


def test_a_gradient_with_a_regularizers_part_is_no_product(float64):
    together, products = train(share_memory=True, replicas=2, regularizer="l2")
    assert [name.partition("/")[0] for name in products] == ["replica0", "replica1"]
    assert_same(train(share_memory=None, regularizer="l2")[0], together)
