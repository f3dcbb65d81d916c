"""The graph of many machines is built of a few replicas: with the functions in place of their calls, it is the same."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import keras
import pytest
import tensorflow as tf

from autodist_core import GraphItem, ResourceSpec
from autodist_core.kernel import Placement, Tasks, build, place
from autodist_core.kernel.pipeline import PIPELINE, DistributedGraph
from autodist_core.step import naming
from autodist_core.strategy import AllReduce
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_keras.capture.tracing import trace_step
from tests.kernel.graphs import table_item
from tests.support.strategies import BUILDERS, strategy_named

UNEVEN = (4, 4, 4, 3, 3, 3)
_LOCAL = re.compile(r"(?<![A-Za-z0-9])local(\d+)(?=$|[/:])")
_HERE = re.compile(r"(?<![A-Za-z0-9])task_here(?=$|[/:])")
_CALL = re.compile(r"machine(\d+)/own\d+$")
_SIGNAL = re.compile(r"signal/|machine\d+/signal\d+_\d+$")


@cache
def _item(scaled: bool = False, name: str = "replica99") -> GraphItem:
    """A model with batch statistics, dropout, metrics and an optimizer with slots."""
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((5,)), layers.Dense(4, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5),
        layers.Dense(3, name=name),
    ])  # fmt: skip
    optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse", metrics=["mae"])
    optimizer.build(model.trainable_variables)
    batch = tf.zeros((4, 5)), tf.zeros((4, 3))
    specs = [tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in batch]
    return trace_step(model, model.train_step, batch, specs, False).item


def _placed(item: GraphItem, builder: Any, count: int, each: int = 1, kind: str = "cpus") -> Placement:
    """A placement on so many machines with so many replicas each."""
    hosts = tuple(f"10.0.{index // 250}.{index % 250 + 1}" for index in range(count))
    nodes = [{"address": host, "chief": host == hosts[0], kind: list(range(each))} for host in hosts]
    spec, chosen = ResourceSpec({"nodes": nodes}), strategy_named(builder)
    strategy = StrategyCompiler(item, spec).compile(chosen.build(item, spec))
    return place(item, strategy, False, Tasks("run", hosts))


class Expanded:
    """The nodes of a graph with the functions in place of their calls: op, attributes, tensors, what they await, device."""

    def __init__(self, graph: Any, each: int) -> None:
        self._each = each
        self._functions = {function.signature.name: function for function in graph.library.function}
        self._bodies = {
            name: {node.name: node for node in function.node_def} for name, function in self._functions.items()
        }
        self._nodes = {node.name: node for node in graph.node}
        self.found: dict[str, tuple[str, dict[str, Any], list[str], set[str], str]] = {}
        for node in graph.node:
            number = _CALL.match(node.name)
            if number:
                for inner in self._bodies[node.attr["f"].func.name].values():
                    if not inner.name.startswith(("signal/", "returned/")):
                        self._add(self._on(inner.name, node), inner, node)
            elif not _SIGNAL.match(node.name):
                self._add(node.name, node)

    def _on(self, name: str, call: Any) -> str:
        """The name that a node of a function has on the machine of a call."""
        task = int(_CALL.match(call.name)[1])
        name = _LOCAL.sub(lambda found: f"replica{task * self._each + int(found[1])}", name)
        return _HERE.sub(f"task_{task}", name)

    def _add(self, name: str, node: Any, call: Any = None) -> None:
        tensors = [each for source in naming.data_inputs(node) for each in self._origins(source, call)]
        awaited = {each for source in node.input if naming.is_control(source) for each in self._origins(source, call)}
        assert name not in self.found
        device = node.device
        if device.startswith("/device:"):
            device = call.device.rpartition("/device:")[0] + device
        self.found[name] = node.op, dict(node.attr), tensors, awaited, device

    def _origins(self, source: str, call: Any = None) -> list[str]:
        """The nodes of which a tensor, a control input or a signal comes."""
        if call is not None:
            return self._inside(naming.node_of(source), call)
        name, output = naming.split(source)
        if _CALL.match(name):
            function = self._functions[self._nodes[name].attr["f"].func.name]
            return self._inside(function.ret[f"out{output}"].partition(":")[0], self._nodes[name])
        if _SIGNAL.match(name):
            return [each for source in self._nodes[name].input for each in self._origins(source)]
        return [name]

    def _inside(self, name: str, call: Any) -> list[str]:
        body = self._bodies[call.attr["f"].func.name]
        if name not in body:
            return self._origins(call.input[int(name.removeprefix("in"))])
        if name.startswith(("signal/", "returned/")):
            return [each for source in body[name].input for each in self._origins(source, call)]
        return [self._on(name, call)]


def _calls(graph: DistributedGraph) -> int:
    return sum(node.op == "StatefulPartitionedCall" for node in graph.graph_def.node)


def _assert_same(graph: DistributedGraph, each: DistributedGraph, per_machine: int = 1) -> None:
    """The second graph was built replica by replica. A node may await more in the first one, and nothing less."""
    assert _calls(graph) > 0 and _calls(each) == 0
    found, expected = (Expanded(made.graph_def, per_machine).found for made in (graph, each))
    steps = [{a for name, node in nodes.items() if name.startswith("step/") for a in node[3]}
             for nodes in (found, expected)]
    assert steps[0] >= steps[1]
    inner = [{name for name in nodes if not name.startswith("step/")} for nodes in (found, expected)]
    # On a server's own machine a value goes through one more operation on its way to the replica there.
    more = {name for name in inner[0] - inner[1] if name.startswith("brought/")}
    assert inner[0] - more == inner[1]
    for name in inner[1]:
        op, attributes, tensors, awaited, device = found[name]
        tensors = [found[source][2][0] if source in more else source for source in tensors]
        assert (op, tensors, device) == (expected[name][0], expected[name][2], expected[name][4]), name
        assert attributes == expected[name][1], name
        assert awaited >= expected[name][3], name
    assert (graph.feeds, graph.counts, graph.inputs) == (each.feeds, each.counts, each.inputs)
    assert (graph.buckets, set(graph.added)) == (each.buckets, set(each.added))


@pytest.mark.parametrize("builder", [*BUILDERS, AllReduce(compressor="HorovodCompressorEF")], ids=str)
def test_the_graph_is_the_one_that_is_built_replica_by_replica(builder):
    placement = _placed(_item(), builder, len(UNEVEN))
    _assert_same(
        build(_item(), placement, sizes=UNEVEN), build(_item(), placement, kernels=[*PIPELINE], sizes=UNEVEN)
    )
    _assert_same(build(_item(), placement), build(_item(), placement, kernels=[*PIPELINE]))


@pytest.mark.quick("AllReduce", "PSLoadBalancing", "PartitionedPS")
@pytest.mark.parametrize("builder", [*BUILDERS, AllReduce(compressor="HorovodCompressorEF")], ids=str)
def test_machines_with_several_replicas(builder):
    """On GPUs each replica has copies of its own, and on CPUs the first one of a machine has them for all."""
    sizes = (3,) * 8 + (2,) * 4
    for kind in ("gpus", "cpus"):
        placement = _placed(_item(), builder, 6, 2, kind)
        found = [build(_item(), placement, kernels=pipeline, sizes=sizes) for pipeline in (PIPELINE, [*PIPELINE])]
        _assert_same(*found, per_machine=2)


@pytest.mark.quick("AllReduce", "PSLoadBalancing")
@pytest.mark.parametrize("builder", BUILDERS)
def test_the_graph_of_64_machines_is_not_much_larger_than_that_of_two(builder):
    few, many = (build(_item(), _placed(_item(), builder, count), sizes=[2] * count) for count in (2, 64))
    assert many.graph_def.ByteSize() < 3 * few.graph_def.ByteSize()
    assert len(many.graph_def.library.function) < 10


@pytest.mark.quick("PSLoadBalancing", "PartitionedPS")
@pytest.mark.parametrize("builder", ["PS", "PSLoadBalancing", "Parallax", "PartitionedPS", "UnevenPartitionedPS"])
def test_rows_are_looked_up_on_servers(builder):
    """The servers are on machines that stand for others, too."""
    for each, kind in ((1, "cpus"), (2, "gpus")):
        placement, sizes = _placed(table_item(), builder, 6, each, kind), (2,) * 6 * each
        found = [build(table_item(), placement, kernels=pipeline, sizes=sizes) for pipeline in (PIPELINE, [*PIPELINE])]
        _assert_same(*found, per_machine=each)


@pytest.mark.parametrize("builder", ["AllReduce", "PSLoadBalancing"])
def test_an_update_that_may_be_left_out(builder):
    """A loss is scaled: where a gradient is not finite, no variable changes."""
    placement, item = _placed(_item(scaled=True), builder, 6), _item(scaled=True)
    _assert_same(*(build(item, placement, kernels=pipeline) for pipeline in (PIPELINE, [*PIPELINE])))


def test_machines_that_are_not_alike_are_built_one_by_one():
    """A layer named as a replica, tables that all replicas gather, and batches that leave replicas without examples."""
    item = _item(name="replica1")
    assert _calls(build(item, _placed(item, "Parallax", 6))) == 0
    assert _calls(build(table_item(), _placed(table_item(), "AllReduce", 6))) == 0
    placement = _placed(_item(), "AllReduce", 6)
    assert _calls(build(_item(), placement, active=5)) == 0
    assert _calls(build(_item(), _placed(_item(), "AllReduce", 3))) == 0
