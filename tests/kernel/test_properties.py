"""Random strategies on random small steps and batches: one device's numbers, or a refusal with all reasons."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autodist_core import GraphItem, Strategy, StrategyError
from autodist_core.kernel import place
from autodist_core.proto import strategy_pb2
from autodist_core.strategy.compiler import StrategyCompiler
from tests.capture.plain import dense_variables, table_variables
from tests.kernel.graphs import assert_as_one_device, dense_item, machine, table_item

Node = strategy_pb2.Strategy.Node
MODELS = {
    "linear": (lambda: dense_item(), dense_variables),
    "linear, twice": (lambda: dense_item(times=2), dense_variables),
    "linear, scaled": (lambda: dense_item(s="float64", t="float64"), lambda: dense_variables(s="float64", t="float64")),
    "table": (table_item, table_variables),
}


@cache
def model(name: str) -> tuple[GraphItem, dict[str, np.ndarray]]:
    """A captured step and the values it begins with."""
    make, variables = MODELS[name]
    return make(), {key: variable.numpy() for key, variable in variables().items()}


def batches_of(name: str, sizes: list[int], seed: int) -> list[np.ndarray]:
    """Batches of these sizes; rows of the table occur once, often, on one replica or on all."""
    rng = np.random.default_rng(seed)
    if name == "table":
        return [rng.integers(0, 6, size=(size, 2)).astype(np.int32) for size in sizes]
    return [rng.normal(size=(size, 3)) for size in sizes]


def synchronizers(servers: list[str]) -> st.SearchStrategy:
    """How a variable or a shard is synchronized, as a function that writes it into a node."""
    reduce = st.tuples(st.integers(0, 1), st.sampled_from([0, 8, 24]))
    return st.one_of(
        st.sampled_from(servers).map(lambda server: lambda node: _serve(node, server)),
        st.just(servers[0]).map(lambda server: lambda node: _serve(node, server, copies=True)),
        reduce.map(lambda options: lambda node: _reduce(node, *options)),
    )


def _serve(node: Node, server: str, copies: bool = False) -> None:
    node.PSSynchronizer.reduction_destinations.append(server)
    node.PSSynchronizer.sync = True
    node.PSSynchronizer.local_replication = copies


def _reduce(node: Node, group: int, bucket_bytes: int) -> None:
    node.AllReduceSynchronizer.group = group
    node.AllReduceSynchronizer.bucket_bytes = bucket_bytes


@st.composite
def nodes(draw: Any, name: str, shape: tuple[int, ...], servers: list[str]) -> Node:
    """A node for one variable: whole, split as one, or shard by shard."""
    node = Node(var_name=name)
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    if axes and draw(st.booleans()):
        axis = draw(st.sampled_from(axes))
        count = draw(st.integers(2, shape[axis]))
        node.partitioner = ",".join(str(count if place == axis else 1) for place in range(len(shape)))
        for _ in range(count):
            draw(synchronizers(servers))(node.part_config.add())
    else:
        draw(synchronizers(servers))(node)
    return node


@st.composite
def cases(draw: Any) -> tuple[str, int, Strategy, list[int], int]:
    """A model, a number of replicas, a strategy, the sizes of batches and a seed for what is in them."""
    name, replicas = draw(st.sampled_from(list(MODELS))), draw(st.integers(2, 3))
    item, _ = model(name)
    devices = [f"localhost:CPU:{index}" for index in range(replicas)]
    message = strategy_pb2.Strategy(graph_config=strategy_pb2.Strategy.GraphConfig(replicas=devices))
    for variable in item.trainable_var_op_to_var.values():
        message.node_config.append(draw(nodes(variable.name, variable.shape, devices)))
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    return name, replicas, Strategy(message), sizes, draw(st.integers(0, 1000))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_valid_strategy_equals_one_device(case: tuple):
    name, replicas, strategy, sizes, seed = case
    item, values = model(name)
    batches = batches_of(name, sizes, seed)
    compiled = StrategyCompiler(item, machine(cpus=replicas)).compile(strategy)
    assert_as_one_device(item, place(item, compiled, share_memory=False), batches, values)


WRONG = {
    "unknown variable": lambda node: setattr(node, "var_name", "nobody"),
    "unknown device": lambda node: _serve_only(node, "localhost:CPU:9"),
    "reduced on a GPU": lambda node: _serve_only(node, "localhost:GPU:0"),
    "two axes": lambda node: setattr(node, "partitioner", "2,2"),
    "too many shards": lambda node: setattr(node, "partitioner", "99"),
    "no synchronizer": lambda node: node.ClearField("AllReduceSynchronizer"),
    "a group below zero": lambda node: setattr(node.AllReduceSynchronizer, "group", -1),
}


def _serve_only(node: Node, server: str) -> None:
    node.ClearField("AllReduceSynchronizer")
    _serve(node, server)


@pytest.mark.parametrize("replicas", [1, 2])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(list(WRONG)), min_size=1, max_size=4))
def test_any_invalid_strategy_is_refused_with_a_reason_for_each_node(replicas: int, wrong: list[str]):
    item, _ = model("linear, scaled")
    devices = [f"localhost:CPU:{index}" for index in range(replicas)]
    message = strategy_pb2.Strategy(graph_config=strategy_pb2.Strategy.GraphConfig(replicas=devices))
    names = list(item.trainable_var_op_to_var)
    for name in names:
        message.node_config.append(Node(var_name=name))
        _reduce(message.node_config[-1], 0, 0)
    for node, what in zip(message.node_config, wrong, strict=False):
        WRONG[what](node)
    with pytest.raises(StrategyError) as refusal:
        StrategyCompiler(item, machine(cpus=2)).compile(Strategy(message))
    text = str(refusal.value)
    for name, what in zip(names, wrong, strict=False):
        # A node under a wrong name is missed under the right one.
        assert f"'{name}'" in text, (what, text)
