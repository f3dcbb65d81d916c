"""Parameter servers: one update, one read of its result, mirrors that follow, tables that stay."""

import numpy as np
import pytest

from autodist_core.kernel import build
from autodist_core.step.naming import node_of
from autodist_core.strategy import PS, AllReduce, Parallax, PSLoadBalancing
from tests.kernel.graphs import ancestors, assert_as_one_device, dense_item, machine, nodes_of, placed, table_item


def _touching(graph, variable: str) -> dict[str, str]:
    """The nodes that read or write one copy of a variable, and their ops."""
    return {node.name: node.op for node in graph.node if any(node_of(name) == variable for name in node.input)}


@pytest.mark.parametrize("times", [1, 2])
def test_one_read_a_variable_and_apply_and_one_write_a_mirror(times: int):
    item = dense_item(times)
    graph = build(item, placed(item, PS(), machine(cpus=3))).graph_def
    for name in ("w", "b"):
        held = _touching(graph, f"variable/{name}.server_localhost_CPU_0")
        pulls = [node for node in held if held[node] == "ReadVariableOp"]
        assert pulls == [f"pull/{occurrence}/{name}" for occurrence in range(times)]
        assert sorted(held.values()) == ["AssignSubVariableOp"] * times + ["ReadVariableOp"] * times
        for replica in range(3):
            mirror = _touching(graph, f"variable/{name}.replica{replica}")
            assert [op for op in mirror.values() if op != "ReadVariableOp"] == ["AssignVariableOp"] * times


def test_mirrors_are_new_before_the_second_half_of_a_step_reads_them():
    item = dense_item(times=2)
    graph = build(item, placed(item, PS())).graph_def
    reads = {
        replica: [
            name for name, op in _touching(graph, f"variable/w.replica{replica}").items() if op == "ReadVariableOp"
        ]
        for replica in range(2)
    }
    for replica, (first, *later) in reads.items():
        assert later
        pulled = f"pull/0/w/w.replica{replica}"
        assert pulled not in ancestors(graph.node, first)
        assert all(pulled in ancestors(graph.node, name) for name in later)
        assert first in ancestors(graph.node, pulled)


@pytest.mark.parametrize("builder", [PS(), Parallax()])
def test_a_table_is_never_mirrored_and_is_looked_up_where_it_is(builder):
    item = table_item()
    placement = placed(item, builder, machine(cpus=2))
    graph = build(item, placement).graph_def
    assert [copy.name for copy in placement.copies("table")] == ["table@server_localhost_CPU_0"]
    handles = [name for name in nodes_of(graph, "VarHandleOp") if "table" in name]
    assert handles == ["variable/table.server_localhost_CPU_0"]
    assert all(op != "ReadVariableOp" for op in _touching(graph, handles[0]).values())
    lookups = nodes_of(graph, "ResourceGather")
    assert len(lookups) == 2 and {node.device for node in lookups.values()} == {"/device:CPU:0"}


def test_a_table_goes_to_the_machine_of_its_server():
    """With GPU replicas, the lookup runs on the CPU that holds the table, and so does its update."""
    item = table_item()
    graph = build(item, placed(item, Parallax(), machine(cpus=1, gpus=2))).graph_def
    for op, count in (("ResourceGather", 2), ("ResourceScatterSub", 1)):
        assert [node.device for node in nodes_of(graph, op).values()] == ["/device:CPU:0"] * count


def test_rows_of_all_busy_replicas_are_put_one_behind_the_other():
    item = table_item()
    for active in (1, 2, 3):
        graph = build(item, placed(item, PS(), machine(cpus=3)), active).graph_def
        (scatter,) = nodes_of(graph, "ResourceScatterSub").values()
        before = ancestors(graph.node, scatter.name)
        joined = [node for name, node in nodes_of(graph, "ConcatV2").items() if name in before and "server" in name]
        assert [len(node.input) - 1 for node in joined] == ([active] * 2 if active > 1 else [])
        assert not {node.op for node in graph.node if node.name in before} & {"AddN", "UnsortedSegmentSum"}


def _features(random, size: int) -> np.ndarray:
    return random.normal(size=(size, 3))


def _ids(random, size: int) -> np.ndarray:
    return random.integers(0, 6, (size, 2)).astype("int32")


@pytest.mark.quick(
    "dense_item-_features-builder0-False", "dense_item-_features-builder1-True", "table_item-_ids-builder2-False"
)
@pytest.mark.parametrize("share_memory", [False, True])
@pytest.mark.parametrize("builder", [PS(), PSLoadBalancing(), Parallax()])
@pytest.mark.parametrize("make, draw", [(dense_item, _features), (table_item, _ids)])
def test_servers_equal_one_device(make, draw, builder, share_memory: bool):
    item, random = make(), np.random.default_rng(3)
    batches = [draw(random, size) for size in (5, 1, 7, 2)]
    assert_as_one_device(item, placed(item, builder, machine(cpus=3), share_memory), batches)


@pytest.mark.parametrize("builder", [PS(), AllReduce()])
def test_replicas_that_share_memory_have_one_copy_and_one_update(builder):
    item = dense_item()
    placement = placed(item, builder, machine(cpus=3), share_memory=True)
    graph = build(item, placement).graph_def
    assert placement.shares_memory
    assert sorted(nodes_of(graph, "VarHandleOp")) == ["variable/b.memory", "variable/w.memory"]
    assert len(nodes_of(graph, "AssignSubVariableOp")) == 2
    assert {node.device for node in nodes_of(graph, "AssignSubVariableOp").values()} == {"/device:CPU:0"}
    assert not nodes_of(graph, "CollectiveReduceV2") and not nodes_of(graph, "AssignVariableOp")


@pytest.mark.parametrize("spec, shared", [(machine(cpus=1), True), (machine(cpus=1, gpus=2), False)])
def test_a_replica_that_is_alone_has_one_memory_and_gpus_have_their_own(spec, shared: bool):
    item = dense_item()
    assert placed(item, AllReduce(), spec, share_memory=True).shares_memory == shared
