"""All-reduce: which collectives there are, how they are called, and what they add up."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.capture import capture
from autodist_core.kernel import build
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.passes.synchronizer.rows import KEYS, LENGTHS
from autodist_core.kernel.passes.synchronizer.sums import hint_of
from autodist_core.strategy import AllReduce
from autodist_core.strategy.synchronizers import AllReducePlan
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
)


def _collectives(item, builder, spec=None, active=None) -> tuple[dict, dict[str, tuple]]:
    """The graph, and of each collective its hint, device and key."""
    graph = build(item, placed(item, builder, spec), active).graph_def
    return graph, {
        name: (node.attr["communication_hint"].s.decode(), node.device, int(constant(graph, node.input[3])))
        for name, node in nodes_of(graph, "CollectiveReduceV2").items()
    }


@pytest.mark.parametrize("spec, on_gpus, on_cpus, over_few", [
    ("NCCL", "nccl", "ring", "sends"), ("RING", "ring", "ring", "ring"), ("AUTO", "auto", "auto", "sends"),
])  # fmt: skip
def test_hints_on_gpus_on_cpus_and_on_those_of_a_few_machines(spec: str, on_gpus: str, on_cpus: str, over_few: str):
    for machines, hint in ((2, over_few), (8, over_few), (9, on_cpus)):
        placement = placed_on(item := dense_item(), AllReduce(), *(1,) * machines)
        assert hint_of(Draft.of(item, placement), AllReducePlan(spec)) == hint
    for kind, spec_of, hint in (("GPU", machine(gpus=2), on_gpus), ("CPU", machine(cpus=3), on_cpus)):
        _, found = _collectives(dense_item(), AllReduce(all_reduce_spec=spec), spec_of)
        assert [each[:2] for each in found.values()] == [
            (hint, f"/device:{kind}:{index}") for index in range(len(found))
        ]


def test_every_node_of_a_gpu_replica_knows_its_device():
    graph, _ = _collectives(dense_item(), AllReduce(), machine(gpus=2))
    for name, node in {**nodes_of(graph, "MatMul"), **nodes_of(graph, "AssignSubVariableOp")}.items():
        index = 0 if "replica0" in name else 1
        assert f"replica{index}" in name and node.device == f"/device:GPU:{index}"


def _keys(item, active: int) -> set[int]:
    return {key for _, _, key in _collectives(item, AllReduce(chunk_size=1), machine(cpus=3), active)[1].values()}


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


@pytest.mark.quick("sizes1-True", "sizes3-False")
@pytest.mark.parametrize("share_memory", [False, True])
@pytest.mark.parametrize("sizes", [(7,), (2,), (1,), (1, 5, 2, 3)])
def test_uneven_batches_and_idle_replicas_equal_one_device(sizes: tuple[int, ...], share_memory: bool):
    item, random = dense_item(), np.random.default_rng(1)
    batches = [random.normal(size=(size, 3)) for size in sizes]
    assert_as_one_device(item, placed(item, AllReduce(), machine(cpus=3), share_memory), batches)


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
    by_sends = build(item := tables_item(3, dtype), placed_on(item, AllReduce(), 1, 1, 1)).graph_def
    assert not nodes_of(by_sends, "CollectiveGatherV2")
    graph = build(item, placed_on(item, AllReduce(all_reduce_spec="RING"), 1, 1)).graph_def
    gathers = nodes_of(graph, "CollectiveGatherV2").values()
    assert sorted(tf.as_dtype(node.attr["T"].type).name for node in gathers) == sorted(["int32", "int64", travels] * 2)
    assert {node.device for node in gathers} == {f"/job:run/replica:0/task:{task}/device:CPU:0" for task in range(2)}


def test_the_lengths_in_which_rows_travel():
    """Each length has a key of its own, and no length is much longer than the one before."""
    assert list(LENGTHS) == sorted(set(LENGTHS)) and len(LENGTHS) <= KEYS and LENGTHS[-1] < 1 << 31
    assert all(after <= before * 1.25 + 1 for before, after in pairwise(LENGTHS))
    graph = build(item := tables_item(3), placed_on(item, AllReduce(all_reduce_spec="RING"), 1, 1)).graph_def
    gathers = nodes_of(graph, "CollectiveGatherV2").values()
    by_name = {node.name: node for node in graph.node}
    keys = set()
    for node in gathers:
        sources = [by_name[name] for name in (node.input[3], *by_name[node.input[3]].input)]
        keys |= {int(tf.make_ndarray(source.attr["value"].tensor)) for source in sources if source.op == "Const"}
    assert len(keys) == 3
    assert all(after - before >= KEYS for before, after in pairwise(sorted(keys)))
