"""The graph of many machines is built of a few replicas: with the functions in place of their calls, it is the same."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import pytest
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.kernel import Placement, build
from autodist_core.kernel.pipeline import PIPELINE, DistributedGraph
from autodist_core.step import naming
from autodist_core.step.naming import FIRST
from tests.kernel.graphs import placed_on, table_item, tables_item
from tests.support.graphs import captured
from tests.support.layers import Does
from tests.support.models import stacked
from tests.support.strategies import BUILDERS, LOSSY, strategy_named

UNEVEN = (4, 4, 4, 3, 3, 3)
_LOCAL = re.compile(r"(?<![A-Za-z0-9])local(\d+)(?=$|[/:])")
_HERE = re.compile(r"(?<![A-Za-z0-9])task_here(?=$|[/:])")
_CALL = re.compile(r"(machine|replica)(\d+)/own\d+$")
_SIGNAL = re.compile(r"(?:^|/)(?:signal/|returned/|signal\d+_\d+$)")


class _NoiseInLoop(keras.layers.Dropout):
    """Draws in a loop's function."""

    def call(self, x):
        return tf.map_fn(lambda row: keras.layers.Dropout.call(self, row, training=True), x)


DRAWING: dict[str, Callable[[], list[keras.layers.Layer]]] = {
    "no draws": list,
    "dropout": lambda: [keras.layers.Dropout(0.5)],
    # A seed that TensorFlow keeps as an attribute of the operation.
    "attribute": lambda: [Does(lambda x: x + tf.random.normal(tf.shape(x), seed=3, dtype=x.dtype))],
    "loop": lambda: [_NoiseInLoop(0.5)],
}


@cache
def _item(scaled: bool = False, name: str = "replica99", drawing: str = "dropout") -> GraphItem:
    """A model with batch statistics, random draws, metrics and an optimizer with slots."""
    layers, dropout = keras.layers, DRAWING[drawing]()
    model = keras.Sequential([
        keras.Input((5,)), layers.Dense(4, "tanh"), layers.BatchNormalization(), *dropout, layers.Dense(3, name=name),
    ])  # fmt: skip
    optimizer = keras.optimizers.Adam(0.01, clipnorm=1.0)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse", metrics=["mae"])
    return captured(model, tf.zeros((4, 5)), tf.zeros((4, 3))).item


def _placed(item: GraphItem, builder: Any, count: int, each: int = 1, kind: str = "cpus") -> Placement:
    """A placement on so many machines with so many replicas each."""
    return placed_on(item, strategy_named(builder), *[each] * count, kind=kind, share_memory=None)


@dataclass
class Node:
    """A node of a graph without calls: the nodes from which its tensors come, and those that it awaits."""

    op: str
    attributes: dict[str, Any]
    tensors: list[str]
    awaited: list[str]
    device: str


def _expanded(graph: Any, each: int) -> dict[str, Node]:
    """The nodes of a graph with the functions in place of their calls, without signals."""
    functions = {function.signature.name: function for function in graph.library.function}
    waiting = [(node.name, _node(node)) for node in graph.node]
    outputs: dict[str, list[str]] = {}
    sources = {node.name: list(node.input) for node in graph.node}
    found: dict[str, Node] = {}
    while waiting:
        name, node = waiting.pop()
        call = _CALL.match(name)
        if not call:
            found[name] = node
            continue
        function = functions[node.attributes["f"].func.name]
        inside = {inner.name for inner in function.node_def}

        def there(source: str, call: Any = call, inside: set[str] = inside) -> str:
            """A tensor as the graph without this call names it."""
            inner = source.lstrip("^").partition(":")[0]
            if inner not in inside:
                return sources[call[0]][int(inner.removeprefix("in"))]
            prefix = "^" if source.startswith("^") else ""
            port = source.rpartition(":")[2] if source.count(":") == 2 else "0"
            return f"{prefix}{_on(inner, call, each)}" + ("" if prefix else f":{port}")

        outputs[name] = [there(function.ret[f"out{number}"]) for number in range(len(function.ret))]
        for inner in function.node_def:
            label = _on(inner.name, call, each)
            sources[label] = [there(source) for source in inner.input]
            copy = _node(inner)
            copy.device = _device(inner.device, node.device)
            waiting.append((label, copy))

    def origins(source: str) -> list[str]:
        name = source.lstrip("^").partition(":")[0]
        if name in outputs:
            return origins(outputs[name][naming.split(source)[1]])
        return [each for other in sources[name] for each in origins(other)] if _SIGNAL.search(name) else [name]

    for name, node in found.items():
        for source in sources[name]:
            (node.awaited if source.startswith("^") else node.tensors).extend(origins(source))
    return {name: node for name, node in found.items() if not _SIGNAL.search(name)}


def _node(node: Any) -> Node:
    return Node(node.op, dict(node.attr), [], [], node.device)


def _on(name: str, call: Any, each: int) -> str:
    """The name that a node of a function has where the function is called."""
    if _SIGNAL.search(name):
        return f"{call[0]}/{name}"
    first = int(call[2]) * (each if call[1] == "machine" else 1)
    return _HERE.sub(f"task_{call[2]}", _LOCAL.sub(lambda found: f"replica{first + int(found[1])}", name))


def _device(inner: str, outer: str) -> str:
    if not inner:
        return outer
    return outer.rpartition("/device:")[0] + inner if inner.startswith("/device:") else inner


def _calls(graph: DistributedGraph) -> int:
    return sum(node.op == "StatefulPartitionedCall" for node in graph.graph_def.node)


def _functions(graph: DistributedGraph) -> list[str]:
    return [function.signature.name for function in graph.graph_def.library.function]


def _assert_same(graph: DistributedGraph, each: DistributedGraph, per_machine: int = 1) -> None:
    """The second graph was built replica by replica. A node may await more in the first one, and nothing less."""
    assert _calls(graph) > 0 and _calls(each) == 0
    found, expected = (_expanded(made.graph_def, per_machine) for made in (graph, each))
    steps = [{other for name, node in nodes.items() if name.startswith("step/") for other in node.awaited}
             for nodes in (found, expected)]
    assert steps[0] >= steps[1]
    inner = [{name for name in nodes if not name.startswith("step/")} for nodes in (found, expected)]
    # On a server's own machine a value goes through one more operation on its way to the replica there. A sum of two
    # values that might stand for more has a snapshot.
    more = {name for name in inner[0] - inner[1] if name.startswith(("brought/", f"{FIRST}/"))}
    assert inner[0] - more == inner[1]
    for name in inner[1]:
        ours, theirs = found[name], expected[name]
        tensors = [found[source].tensors[0] if source in more else source for source in ours.tensors]
        assert (ours.op, tensors, ours.device) == (theirs.op, theirs.tensors, theirs.device), name
        assert ours.attributes == theirs.attributes, name
        assert set(ours.awaited) >= set(theirs.awaited), name
    assert (graph.feeds, graph.counts, graph.inputs) == (each.feeds, each.counts, each.inputs)
    assert (graph.buckets, set(graph.added)) == (each.buckets, set(each.added))


def _both(item: GraphItem, placement: Placement, sizes: Any = ()) -> list[DistributedGraph]:
    """The graph, and the one that is built replica by replica."""
    return [build(item, placement, kernels=pipeline, sizes=sizes) for pipeline in (PIPELINE, [*PIPELINE])]


@pytest.mark.quick("AllReduce", "PSLoadBalancing")
@pytest.mark.parametrize("builder", [*BUILDERS, *LOSSY], ids=str)
def test_the_graph_is_the_one_that_is_built_replica_by_replica(builder):
    placement = _placed(_item(), builder, len(UNEVEN))
    _assert_same(*_both(_item(), placement, UNEVEN))
    _assert_same(*_both(_item(), placement))


@pytest.mark.quick("PSLoadBalancing")
@pytest.mark.parametrize("builder", [*BUILDERS, *LOSSY], ids=str)
def test_one_machine_besides_the_first_is_enough(builder, caplog):
    """On GPUs each replica has copies of its own, and on CPUs the first one of a machine has them for all. Of many
    replicas of a machine three are built. Machines with other numbers of examples have another one to stand for them.
    """
    caplog.set_level("DEBUG", "autodist")
    for machines, each, kind in ((6, 1, "cpus"), (4, 2, "gpus"), (5, 2, "cpus"), (4, 5, "gpus"), (4, 5, "cpus")):
        item = _item(drawing="no draws" if each == 1 else "dropout")
        placement = _placed(item, builder, machines, each, kind)
        for sizes in ([2] * machines * each, []):
            found = _both(item, placement, sizes)
            _assert_same(*found, per_machine=each)
            assert each < 5 or not sizes or any(name.startswith("each_") for name in _functions(found[0]))
    assert "More replicas are built" not in caplog.text, caplog.text
    for kind in ("gpus", "cpus"):
        _assert_same(*_both(_item(), _placed(_item(), builder, 6, 2, kind), (3,) * 8 + (2,) * 4), per_machine=2)


@pytest.mark.quick("attribute-AllReduce")
@pytest.mark.parametrize("builder", ["AllReduce", "PSLoadBalancing"])
@pytest.mark.parametrize("drawing", ["attribute", "loop"])
def test_draws_that_are_no_constants_are_built_replica_by_replica(drawing: str, builder):
    """Their seeds are attributes, or in functions that each replica has a copy of."""
    item = _item(drawing=drawing)
    for machines, each, kind in ((6, 1, "cpus"), (4, 2, "gpus"), (4, 5, "cpus")):
        assert _calls(build(item, _placed(item, builder, machines, each, kind))) == 0


@pytest.mark.quick("PSLoadBalancing")
@pytest.mark.parametrize("builder", BUILDERS)
def test_the_graph_of_64_machines_is_not_much_larger_than_that_of_two(builder):
    few, many = (build(_item(), _placed(_item(), builder, count), sizes=[2] * count) for count in (2, 64))
    assert many.graph_def.ByteSize() < 3 * few.graph_def.ByteSize()
    assert len(many.graph_def.library.function) < 10


@pytest.mark.quick("PSLoadBalancing")
@pytest.mark.parametrize("builder", ["PS", "PSLoadBalancing", "Parallax", "PartitionedPS", "UnevenPartitionedPS"])
def test_rows_are_looked_up_on_servers(builder):
    """The servers are on machines that stand for others, too."""
    for each, kind in ((1, "cpus"), (2, "gpus"), (4, "cpus")):
        placement, sizes = _placed(table_item(), builder, 6, each, kind), (2,) * 6 * each
        _assert_same(*_both(table_item(), placement, sizes), per_machine=each)
        # Of several tables on a server, the rows travel together on each machine in the same way.
        assert _calls(build(tables_item(14), _placed(tables_item(14), builder, 6, each, kind), sizes=sizes)) > 0


@cache
def _large_item() -> GraphItem:
    """A layer whose rows two replicas of a machine multiply at once."""
    model = stacked(keras.Input((512,)), keras.layers.Dense(512, "tanh", name="large"))
    return captured(model, tf.zeros((4, 512)), tf.zeros((4, 512))).item


@pytest.mark.quick("5")
@pytest.mark.parametrize("each", [3, 5])
def test_large_layers_of_machines_with_more_replicas(each):
    """Each replica multiplies for itself, also where two replicas of a machine stand for five."""
    item, sizes = _large_item(), (2,) * 6 * each
    found = _both(item, _placed(item, "AllReduce", 6, each), sizes)
    assert _calls(found[0])
    _assert_same(*found, per_machine=each)
    assert sum(node.op == "MatMul" for node in found[1].graph_def.node) == 12 * each


@pytest.mark.quick("PSLoadBalancing", "PartitionedPS")
@pytest.mark.parametrize("builder", ["AllReduce", "PSLoadBalancing", "PartitionedPS"])
def test_large_layers_of_machines_with_two_replicas(builder):
    """Each machine has one product of the forward pass, and one that is the gradient, over the rows of its replicas.

    The gradient of a split variable is in parts, each of which is no product.
    """
    item, each, sizes = _large_item(), 2, (3,) * 8 + (2,) * 4
    found = _both(item, _placed(item, builder, 6, each), sizes)
    _assert_same(*found, per_machine=each)
    products = [node.name for node in found[1].graph_def.node if node.op == "MatMul"]
    assert sum(name.startswith("at_once/") for name in products) == (6 if builder == "PartitionedPS" else 12)
    assert len(products) == (18 if builder == "PartitionedPS" else 12)


@pytest.mark.parametrize("builder", ["AllReduce", "PSLoadBalancing"])
def test_an_update_that_may_be_left_out(builder):
    """A loss is scaled: where a gradient is not finite, no variable changes."""
    item = _item(scaled=True)
    _assert_same(*_both(item, _placed(item, builder, 6)))


@pytest.mark.quick("three tables-2")
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("item", [table_item(), tables_item(3)], ids=["one table", "three tables"])
def test_the_rows_that_all_machines_gather(item, each):
    found = _both(item, _placed(item, "AllReduce", 6, each))
    _assert_same(*found, per_machine=each)
    gathers = [name for name, node in _expanded(found[0].graph_def, each).items() if node.op == "CollectiveGatherV2"]
    assert len(gathers) == 6 * 3, "however many tables"


def test_machines_that_are_not_alike_are_built_one_by_one():
    """A layer named as a replica, and batches that leave replicas without examples."""
    item = _item(name="replica1")
    assert _calls(build(item, _placed(item, "Parallax", 6))) == 0
    placement = _placed(_item(), "AllReduce", 6)
    assert _calls(build(_item(), placement, active=5)) == 0
    assert _calls(build(_item(), _placed(_item(), "AllReduce", 3))) == 0
