"""Weights that replicas gather: which gathers there are, when each begins, and what memory they take."""

import re
from functools import cache
from itertools import pairwise

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.grappler import tf_optimizer

from autodist_core import GraphItem, ResourceSpec
from autodist_core.capture import capture
from autodist_core.forecast.needs import foretold
from autodist_core.kernel import build
from autodist_core.kernel.passes import weights_together
from autodist_core.kernel.splitting import gathers
from autodist_core.step import naming
from autodist_core.strategy import AllReduce, Sharded
from autodist_core.training import Settings
from autodist_core.training.sessions import Sessions
from tests.capture.plain import descend, trace
from tests.equality.test_more_models import MODELS as MORE
from tests.kernel import graphs
from tests.kernel.graphs import SHAPES, ancestors, assert_as_one_device, layered_variables, machine, placed, placed_on
from tests.support.graphs import captured
from tests.support.models import stacked
from tests.support.training import compiled, distributed

LAYERS, WIDTH = 5, 64
KERNEL = WIDTH * WIDTH * 8
GATHERED = Sharded(weights="gathered", whole_bytes=4096)
X = np.ones((4, WIDTH))


@cache
def _item(count: int = LAYERS, width: int = WIDTH, dtype: str = "float64") -> GraphItem:
    """Layers of kernels in two parts, and of small biases."""
    layers = [keras.layers.Dense(width, "tanh", dtype=dtype, name=f"dense_{number}") for number in range(count)]
    x = np.ones((4, width), dtype if dtype == "float64" else "float32")
    return captured(stacked(keras.Input((width,), dtype=x.dtype.name), *layers, optimizer="adam"), x, x).item


def _gathers(nodes) -> list[tuple[str, str]]:
    """The gathers of the first replica, and the product that uses each, in the order of the products."""
    found = []
    for node in nodes:
        for source in node.input:
            if node.op == "MatMul" and node.name.startswith("replica0/") and "ReadVariableOp" in source:
                found.append((source, node.name))
    return found


@pytest.mark.parametrize("ahead", [2, 4])
def test_each_use_has_a_gather_which_begins_when_an_earlier_use_has_ended(monkeypatch, ahead):
    """The one two before, unless weights are small."""
    monkeypatch.setattr(gathers, "AHEAD_BYTES", ahead * KERNEL)
    graph = build(_item(), placed(_item(), GATHERED)).graph_def
    found = _gathers(graph.node)
    # The backward pass needs the kernels of all layers but the first, and has that of the last one still.
    assert len(found) == 2 * LAYERS - 1 and len({gather for gather, _ in found}) == 2 * LAYERS - 2
    by_name = {node.name: node for node in graph.node}
    uses = dict(found)
    for before, one, (gather, _) in zip(uses, [*uses][1:], [*uses.items()][ahead:], strict=False):
        reads = by_name[gather].input[:2]
        assert len({by_name[read].device for read in reads}) == 2
        for read in reads:
            waits = ancestors(graph.node, read)
            assert uses[before] in waits and uses[one] not in waits


@pytest.mark.parametrize("within, count", [(1, 8), (2, 7), (4, 6), (100, LAYERS)])
def test_a_weight_that_is_used_again_soon_enough_is_gathered_once(within, count):
    graph = build(_item(), placed(_item(), Sharded(weights=within, whole_bytes=4096))).graph_def
    assert len({gather for gather, _ in _gathers(graph.node)}) == count


def test_weights_of_an_owner_travel_in_one_message(monkeypatch):
    monkeypatch.setattr(weights_together, "TOGETHER_BYTES", 3 * KERNEL)
    nodes = {node.name: node for node in build(_item(), placed_on(_item(), GATHERED, 1, 1)).graph_def.node}
    joined = [node.input[:-1] for name, node in nodes.items() if re.fullmatch("replica0/weights/./1/sent", name)]
    assert [len(rows) for rows in joined] == [3, 3, 2]
    for first, *others in ([nodes[nodes[row].input[0]] for row in rows] for rows in joined):
        assert "task:1" in first.device and all(other.input[1:] == first.input[1:] for other in others)
    sent = {source for node in nodes.values() if "task:0" in node.device for source in node.input}
    assert not [name for name in sent if "ReadVariableOp/" in name and "task:1" in nodes[naming.node_of(name)].device]


def test_each_gradient_waits_for_the_sum_of_the_one_before():
    """So no machine is further ahead of others. A part that waits for theirs does not keep the whole gradient."""
    item = _item(4, 256)
    nodes = build(item, placed_on(item, GATHERED, 1, 1)).graph_def.node
    by_name = {node.name: node for node in nodes}
    beginnings = [f"reduced/server_10.0.0.2_CPU_0/0/dense_{number}/kernel/" for number in reversed(range(4))]
    sums = [name for beginning in beginnings for name in by_name if name.startswith(beginning)]
    for before, later in pairwise(sums):
        (own,) = (source for source in by_name[later].input if by_name[source].op == "DeepCopy")
        assert before in ancestors(nodes, own)


@pytest.mark.parametrize("together", [0, 1 << 22])
@pytest.mark.parametrize("policy, wire_dtype", [("float32", "float16"), ("mixed_bfloat16", ""), ("float32", "")])
def test_kernels_and_their_gradients_travel_in_half_precision(monkeypatch, policy, wire_dtype, together):
    """Where layers compute in it, or the strategy says so."""
    monkeypatch.setattr(weights_together, "TOGETHER_BYTES", together)
    item = _item(3, 256, policy)
    builder = Sharded(weights="gathered", whole_bytes=4096, wire_dtype=wire_dtype)
    graph = graphs.imported(build(item, placed_on(item, builder, 1, 1)).graph_def)
    types = {
        source.dtype for node in graph.get_operations() for source in node.inputs
        if source.op.device != node.device and source.shape.num_elements() in (32768, 65536, 98304)
    }
    assert types == {tf.as_dtype(wire_dtype or {"mixed_bfloat16": "bfloat16"}.get(policy, policy))}


class _Reading(keras.layers.Layer):
    def build(self, _):
        self.kernel = self.add_weight(shape=(WIDTH, WIDTH), autocast=False)

    def call(self, inputs):
        kernel = tf.convert_to_tensor(self.kernel)
        tf.square(kernel)
        return inputs @ tf.cast(kernel, inputs.dtype)


def test_what_nothing_needs_may_read_a_kernel_that_travels_in_half_precision():
    item = captured(stacked(keras.Input((WIDTH,)), _Reading(dtype="mixed_bfloat16"), optimizer="sgd"), X, X).item
    graph = graphs.imported(build(item, placed(item, GATHERED)).graph_def)
    assert any(node.type == "ConcatV2" and node.get_attr("T") == tf.bfloat16 for node in graph.get_operations())


def test_tensorflow_makes_one_gather_of_no_two():
    graph_def = build(_item(), placed(_item(), GATHERED)).graph_def
    graph = graphs.imported(graph_def)
    for name in (node.name for node in graph_def.node if node.name.startswith("step/")):
        graph.add_to_collection("train_op", graph.get_operation_by_name(name))
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    with graph.as_default():
        optimized = tf_optimizer.OptimizeGraph(config, tf.compat.v1.train.export_meta_graph(graph=graph))
    joined = [
        node for node in optimized.node
        if node.op == "ConcatV2" and node.name.startswith("replica") and "ReadVariableOp" in node.name
    ]
    assert len(joined) == 2 * (2 * LAYERS - 2)


def test_a_device_holds_its_parts_and_the_weights_in_use():
    """With Adam, weights, two slots and gradients are divided by the replicas; the weights in use come on top."""
    of_each = {
        str(builder): foretold(_item(), placed(_item(), builder, machine(cpus=1, gpus=2)), len(X))
        for builder in (GATHERED, Sharded(whole_bytes=4096), AllReduce())
    }
    small = 8 * LAYERS * WIDTH * 8
    gathered, kept, reduced = (max(each, key=lambda each: each.peak) for each in of_each.values())
    assert gathered.weights - LAYERS * KERNEL // 2 < small and gathered.optimizer - LAYERS * KERNEL < small
    assert gathered.peak < 4 * LAYERS * KERNEL // 2 + 3 * KERNEL + 4 * small
    assert kept.weights - LAYERS * KERNEL * 3 // 2 < small and kept.optimizer - LAYERS * KERNEL < small
    assert gathered.peak < kept.peak < reduced.peak


def _item_of_two_updates() -> GraphItem:
    """A step that updates the second layer before the gradient of the first, which is of the second's old weights."""
    variables = layered_variables()

    def step(tracer, x):
        with tf.GradientTape(persistent=True) as tape:
            for name in SHAPES:
                x = tf.tanh(x @ variables[name])
            loss = tf.reduce_mean(tf.square(x - variables["scale"] - tf.reduce_sum(variables["nothing"])))
        for names in (("second",), ("first", "third", "scale", "nothing")):
            given = {name: variables[name] for name in names}
            gradients = tape.gradient(loss, given)
            tracer.apply(gradients, descend(given))
        return [loss]

    return capture(trace(step, variables))


def test_a_gradient_after_an_update_is_of_the_weights_before_it():
    item = _item_of_two_updates()
    batches = [np.random.default_rng(3).normal(size=(size, 3)) for size in (5, 4)]
    placement = placed(item, Sharded(weights="gathered", whole_bytes=0), machine(cpus=2))
    assert "second" in placement.partitioner.looked_up
    assert_as_one_device(item, placement, batches)


def test_weights_are_gathered_before_any_training_too():
    variables = layered_variables()
    item = capture(trace(lambda tracer, x: [tf.reduce_mean(x @ variables["first"] @ variables["second"])], variables))
    settings = Settings(ResourceSpec.local(cpus=2), Sharded(weights="gathered", whole_bytes=0), share_memory=False)
    assert Sessions(settings).placement_without_training(item).partitioner.looked_up >= {"first", "second"}


def test_the_plan_says_which_variables_keep_their_mirrors():
    reference = MORE["own_gradients"]
    data = reference.data()
    with distributed(compiled(reference), strategy=Sharded(weights="gathered", whole_bytes=0)) as front:
        plan = str(front.plan(data.x, data.y)).replace("_1/", "/")
    operation = "own_gradients/function/StatefulPartitionedCall"
    assert f"note: function/kernel keeps its mirrors: StatefulPartitionedCall ({operation}) needs them" in plan
    row = {line.split()[0]: line for line in plan.splitlines() if " : " in line}
    assert "gathered=True" in row["recomputed/kernel"] and "gathered" not in row["function/kernel"]
