"""All-reduce: which collectives there are, how they are called, and what they add up."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.capture import capture
from autodist_core.kernel import build
from autodist_core.kernel.passes.synchronizer.rows import KEYS, LENGTHS
from autodist_core.strategy import AllReduce
from tests.capture.plain import dense_step, dense_variables, trace
from tests.kernel.graphs import (
    assert_as_one_device,
    constant,
    dense_item,
    machine,
    nodes_of,
    placed,
    placed_on,
    table_item,
    tables_item,
    train,
)


def _collectives(item, builder, spec=None, active=None) -> tuple[dict, dict[str, dict]]:
    """The graph, and of each collective: replica, hint, device, type, and its three keys."""
    graph = build(item, placed(item, builder, spec), active).graph_def
    found = {}
    for name, node in nodes_of(graph, "CollectiveReduceV2").items():
        size, group, instance = (int(constant(graph, source)) for source in node.input[1:4])
        found[name] = {
            "hint": node.attr["communication_hint"].s.decode(), "device": node.device, "size": size, "group": group,
            "instance": instance, "type": tf.as_dtype(node.attr["T"].type), "merge": node.attr["merge_op"].s,
        }  # fmt: skip
    return graph, found


@pytest.mark.parametrize("spec, on_gpus, on_cpus", [
    ("NCCL", "nccl", "ring"), ("RING", "ring", "ring"), ("AUTO", "auto", "auto"),
])  # fmt: skip
def test_hints_on_gpus_and_on_cpus_where_nccl_cannot_run(spec: str, on_gpus: str, on_cpus: str):
    for kind, spec_of, hint in (("GPU", machine(gpus=2), on_gpus), ("CPU", machine(cpus=3), on_cpus)):
        _, found = _collectives(dense_item(), AllReduce(all_reduce_spec=spec), spec_of)
        assert [(c["hint"], c["device"]) for c in found.values()] == [
            (hint, f"/device:{kind}:{index}") for index in range(len(found))
        ]


def test_every_node_of_a_gpu_replica_knows_its_device():
    graph, _ = _collectives(dense_item(), AllReduce(), machine(gpus=2))
    for name, node in {**nodes_of(graph, "MatMul"), **nodes_of(graph, "AssignSubVariableOp")}.items():
        index = 0 if "replica0" in name else 1
        assert f"replica{index}" in name and node.device == f"/device:GPU:{index}"


@pytest.mark.parametrize("chunk_size, groups", [(1, 4), (2, 2), (3, 2), (4, 1), (128, 1)])
def test_as_many_collectives_as_groups_on_every_replica(chunk_size: int, groups: int):
    item = dense_item(s="float64", t="float64")
    _, found = _collectives(item, AllReduce(chunk_size=chunk_size), machine(cpus=3))
    assert len(found) == 3 * groups
    assert {c["size"] for c in found.values()} == {3} and {c["merge"] for c in found.values()} == {b"Add"}


@pytest.mark.parametrize("chunk_size, collectives", [(1, 5), (2, 4), (4, 3), (5, 2)])
def test_types_of_one_group_travel_apart(chunk_size: int, collectives: int):
    """Five variables, the last two of float32: in pairs, the second group has one of each type."""
    item = dense_item(f="float64", g="float32", h="float32")
    _, found = _collectives(item, AllReduce(chunk_size=chunk_size))
    assert len(found) == 2 * collectives
    assert {c["type"] for c in found.values()} == {tf.float64, tf.float32}


def test_replicas_agree_on_keys_and_nothing_else_shares_them():
    item = dense_item(times=2, s="float64")
    _, found = _collectives(item, AllReduce(chunk_size=2))
    by_key: dict[int, list[str]] = {}
    for name, collective in found.items():
        by_key.setdefault(collective["instance"], []).append(name)
    assert len(by_key) == 2 * 2, "two applies of two groups"
    for names in by_key.values():
        assert sorted(name.count("replica0") for name in names) == [0, 1]
        assert len({name.replace("replica1", "replica0") for name in names}) == 1


def _keys(item, active: int) -> set[int]:
    return {c["instance"] for c in _collectives(item, AllReduce(chunk_size=1), machine(cpus=3), active)[1].values()}


def test_keys_differ_between_numbers_of_busy_replicas_and_repeat_between_builds():
    item = dense_item()
    keys = [_keys(item, active) for active in (1, 2, 3)]
    assert len(set.union(*keys)) == 3 * 2
    assert keys == [_keys(dense_item(), active) for active in (1, 2, 3)]


def test_keys_differ_between_functions_with_equally_many_nodes():
    """As when a step is captured once more because an axis varies."""
    variables = dense_variables()
    specs = [tf.TensorSpec((None, size), tf.float64, "x") for size in (3, None)]
    items = [capture(trace(dense_step(variables), variables, [spec])) for spec in specs]
    assert len({len(item.graph_def.node) for item in items}) == 1, "else this proves nothing"
    assert not _keys(items[0], 3) & _keys(items[1], 3)


def _expected(batches: list[np.ndarray], values: dict) -> dict:
    """One device: a step of gradient descent for each batch, in numpy."""
    w, b = values["w"], values["b"]
    for x in batches:
        error = 2.0 * (x @ w + b - 1.0) / (2 * len(x))
        w, b = w - 0.1 * x.T @ error, b - 0.1 * error.sum(axis=0)
    return {"w": w, "b": b}


@pytest.mark.quick("sizes1-True", "sizes3-False")
@pytest.mark.parametrize("share_memory", [False, True])
@pytest.mark.parametrize("sizes", [(7,), (2,), (1,), (1, 5, 2, 3)])
def test_uneven_batches_and_idle_replicas_equal_one_device(sizes: tuple[int, ...], share_memory: bool):
    item, random = dense_item(), np.random.default_rng(1)
    values = {"w": random.normal(size=(3, 2)), "b": random.normal(size=2)}
    batches = [random.normal(size=(size, 3)) for size in sizes]
    found = train(item, placed(item, AllReduce(), machine(cpus=3), share_memory), values, batches)
    for name, expected in _expected(batches, values).items():
        assert np.max(np.abs(found[name] - expected)) <= 1e-12 * np.max(np.abs(expected))


@pytest.mark.quick("sizes1-fused", "sizes2-apart")
@pytest.mark.parametrize("builder", [AllReduce(), AllReduce(chunk_size=1)], ids=["fused", "apart"])
@pytest.mark.parametrize("sizes", [(3,), (1,), (4, 1, 2)])
def test_rows_are_gathered_by_every_replica(sizes: tuple[int, ...], builder: AllReduce):
    item, random = table_item(), np.random.default_rng(2)
    values = {"table": random.normal(size=(6, 2)), "scale": random.normal(size=2)}
    batches = [random.integers(0, 6, (size, 2)).astype("int32") for size in sizes]
    found = assert_as_one_device(item, placed(item, builder), batches, values)
    assert not np.array_equal(found["table"], values["table"])
    _, collectives = _collectives(item, builder)
    assert len(collectives) == 2, "the table's rows go through no collective"


@pytest.mark.parametrize("dtype, travels", [("float64", "float64"), ("float16", "float16"), ("bfloat16", "float32")])
def test_rows_travel_over_machines_in_a_type_that_has_all_their_values(dtype: str, travels: str):
    item = tables_item(3, dtype)
    graph = build(item, placed_on(item, AllReduce(), 1, 1)).graph_def
    gathers = nodes_of(graph, "CollectiveGatherV2").values()
    assert sorted(tf.as_dtype(node.attr["T"].type).name for node in gathers) == sorted(["int32", "int64", travels] * 2)
    assert {node.device for node in gathers} == {f"/job:run/replica:0/task:{task}/device:CPU:0" for task in range(2)}


def test_the_lengths_in_which_rows_travel():
    """Each length has a key of its own, and no length is much longer than the one before."""
    assert list(LENGTHS) == sorted(set(LENGTHS))
    assert len(LENGTHS) <= KEYS and LENGTHS[-1] < 1 << 31
    assert all(after <= before * 1.25 + 1 for before, after in pairwise(LENGTHS))
    item = tables_item(3)
    graph = build(item, placed_on(item, AllReduce(), 1, 1)).graph_def
    gathers = nodes_of(graph, "CollectiveGatherV2").values()
    by_name = {node.name: node for node in graph.node}
    keys = set()
    for node in gathers:
        sources = [by_name[name] for name in (node.input[3], *by_name[node.input[3]].input)]
        keys |= {int(tf.make_ndarray(source.attr["value"].tensor)) for source in sources if source.op == "Const"}
    assert len(keys) == 3
    assert all(after - before >= KEYS for before, after in pairwise(sorted(keys)))
