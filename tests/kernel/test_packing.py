"""Small tensors travel together: how many messages a step sends does not depend on the number of variables."""

import re

import numpy as np
import pytest
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.capture import capture
from autodist_core.kernel import build, packing
from autodist_core.step import naming
from autodist_core.strategy import PS, AllReduce, PartitionedPS, PSLoadBalancing, UnevenPartitionedPS
from tests.capture.plain import TABLE_SPECS, dense_step, descend, gradients_of, trace
from tests.kernel.graphs import (
    assert_as_one_device,
    layered_item,
    layered_values,
    machine,
    placed,
    placed_on,
    tables_item,
)
from tests.support.strategies import Mixed

SERVERS = [PS(), PSLoadBalancing(), PartitionedPS(), UnevenPartitionedPS(), Mixed()]


def _chain_item(layers: int, clipped: bool = False) -> GraphItem:
    """A step with a matrix and a vector for each layer; with `clipped`, the norm of all gradients limits the update."""
    random = np.random.default_rng(4)
    variables = {
        f"{name}{layer}": tf.Variable(random.normal(size=shape) * 0.4, name=f"{name}{layer}")
        for layer in range(layers) for name, shape in (("matrix", (3, 3)), ("vector", (3,)))
    }

    def loss_of(given, x):
        for layer in range(layers):
            x = tf.tanh(x @ given[f"matrix{layer}"] + given[f"vector{layer}"])
        return tf.reduce_mean(tf.square(x - 0.2))

    def update(gradients):
        if clipped:
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(each)) for each in gradients.values()]))
            gradients = {name: each / (1.0 + norm) for name, each in gradients.items()}
        descend(variables)(gradients)

    def step(tracer, x):
        loss, gradients = gradients_of(variables, x, loss_of)
        tracer.apply(gradients, update)
        return [loss]

    return capture(trace(step, variables))


def _messages(item: GraphItem, builder) -> dict[tuple[str, str], int]:
    """How many tensors and signals each machine sends to each other one."""
    graph = build(item, placed_on(item, builder, 1, 1, 1), sizes=(2, 2, 2)).graph_def
    device = {node.name: node.device for node in graph.node}
    sent = {
        (source.removesuffix(":0"), device[naming.node_of(source)], node.device)
        for node in graph.node for source in node.input if device[naming.node_of(source)] != node.device
    }
    pairs = [pair for _, *pair in sent]
    return {tuple(pair): pairs.count(pair) for pair in pairs}


@pytest.mark.quick(str(PartitionedPS()), str(Mixed()), str(AllReduce()))
@pytest.mark.parametrize("builder", [*SERVERS, AllReduce()], ids=str)
def test_the_number_of_messages_does_not_depend_on_the_number_of_variables(builder):
    few, many = (_messages(_chain_item(layers), builder) for layers in (3, 12))
    assert few == many
    assert max(many.values()) < 12


def test_a_norm_of_all_gradients_is_one_message_of_each_server(monkeypatch):
    few, many = (_messages(_chain_item(layers, clipped=True), PartitionedPS()) for layers in (3, 12))
    assert few == many
    monkeypatch.setattr(packing, "apart", lambda devices: len(set(devices)) > 1)
    item, random = _chain_item(3, clipped=True), np.random.default_rng(2)
    batches = [random.normal(size=(size, 3)) for size in (7, 2, 3)]
    placement = placed(item, PartitionedPS(), machine(cpus=3))
    assert any("/together/" in node.name for node in build(item, placement).graph_def.node)
    assert_as_one_device(item, placement, batches)


def test_large_tensors_travel_alone_and_vectors_are_of_bounded_size(monkeypatch):
    monkeypatch.setattr(packing, "ALONE_BYTES", 40)
    monkeypatch.setattr(packing, "VECTOR_BYTES", 60)
    most = [max(_messages(_chain_item(layers), PS()).values()) for layers in (3, 12)]
    # Of a layer, 72 bytes travel alone, and 24 go into a vector that takes two of them.
    assert most[1] - most[0] == (12 + 6) - (3 + 2)


@pytest.mark.parametrize("builder", [AllReduce(), PS(), PartitionedPS()], ids=str)
def test_the_rows_of_all_tables_travel_together(builder):
    few, many = (_messages(tables_item(tables), builder) for tables in (2, 7))
    assert few == many


@pytest.mark.quick(str(AllReduce()), str(PartitionedPS()))
@pytest.mark.parametrize("builder", [AllReduce(), PS(), PartitionedPS()], ids=str)
def test_packed_rows_equal_one_device(monkeypatch, builder):
    monkeypatch.setattr(packing, "apart", lambda devices: len(set(devices)) > 1)
    item, random = tables_item(3), np.random.default_rng(6)
    batches = [random.integers(0, 5, (size, 2)).astype("int32") for size in (7, 5, 2, 1)]
    placement = placed(item, builder, machine(cpus=3))
    names = [node.name for node in build(item, placement).graph_def.node]
    assert any("/packed/" in name for name in names)
    assert any("/lookups/" in name for name in names) is not isinstance(builder, AllReduce)
    assert_as_one_device(item, placement, batches)


def test_a_lookup_waits_for_no_other_one_that_depends_on_it_or_on_compute():
    """The second table is asked for what the first one has, the third for what compute finds; large rows go alone."""
    random = np.random.default_rng(7)
    shapes = {"first": (6, 1), "second": (6, 2), "third": (6, 3), "fourth": (6, 2), "wide": (6, 200)}
    variables = {name: tf.Variable(random.normal(size=shape), name=name) for name, shape in shapes.items()}
    variables["scale"] = tf.Variable(1.5, dtype=tf.float64, name="scale")

    def loss_of(given, ids):
        first = tf.nn.embedding_lookup(given["first"], ids)
        largest = tf.cast(tf.reduce_max(tf.cast(ids, tf.float64) * given["scale"], axis=1) / 3.0, tf.int32)
        rows = [
            first, tf.nn.embedding_lookup(given["second"], tf.cast(first[:, :, 0] > 0.0, tf.int32)),
            tf.nn.embedding_lookup(given["third"], largest), tf.nn.embedding_lookup(given["fourth"], ids),
            tf.nn.embedding_lookup(given["wide"], ids),
        ]
        return given["scale"] * tf.add_n([tf.reduce_mean(tf.square(each - 0.5)) for each in rows])

    item = capture(trace(dense_step(variables, loss_of=loss_of), variables, TABLE_SPECS))
    graph = build(item, placed_on(item, PS(), 1, 1)).graph_def
    vectors = [node for node in graph.node if re.fullmatch(r"replica1/lookups/\d+/found/concat", node.name)]
    assert [node.attr["N"].i for node in vectors] == [2]


@pytest.mark.quick(str(PS()), str(UnevenPartitionedPS()), str(Mixed()))
@pytest.mark.parametrize("builder", SERVERS, ids=str)
def test_packed_training_equals_one_device(monkeypatch, builder):
    """Each CPU device counts as a machine. The types are mixed, and an idle replica takes part in the last steps."""
    monkeypatch.setattr(packing, "apart", lambda devices: len(set(devices)) > 1)
    monkeypatch.setattr(packing, "ALONE_BYTES", 80)
    monkeypatch.setattr(packing, "VECTOR_BYTES", 150)
    item, random = layered_item(2, scale="float32"), np.random.default_rng(6)
    batches = [random.normal(size=(size, 3)) for size in (7, 5, 2, 1)]
    placement = placed(item, builder, machine(cpus=3))
    assert any("/packed/" in node.name for node in build(item, placement).graph_def.node)
    assert_as_one_device(item, placement, batches, layered_values(scale="float32"))
