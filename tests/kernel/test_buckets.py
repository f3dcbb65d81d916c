"""Buckets: how gradients are merged and cut, in which order they travel, and that cutting changes no number."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from autodist_core import GraphItem
from autodist_core.capture import capture
from autodist_core.kernel import build, packing
from autodist_core.kernel.passes.synchronizer.buckets import Lane, Load, fill
from autodist_core.runtime.local.session import LocalSession
from autodist_core.step import naming
from autodist_core.strategy import AllReduce, Parallax
from tests.capture.plain import dense_step, trace
from tests.kernel.graphs import (
    SHAPES,
    ancestors,
    assert_as_one_device,
    constant,
    layered_item,
    layered_values,
    machine,
    nodes_of,
    placed,
    placed_on,
    summed,
    train,
)
from tests.support.compare import assert_same


def _sums(item: GraphItem, builder, cpus: int = 2, gpus: int = 0, active: int | None = None) -> tuple:
    """The graph, and the collectives of replica 0, in the order in which they are numbered."""
    graph = build(item, placed(item, builder, machine(cpus, gpus)), active).graph_def
    found = [node for node in nodes_of(graph, "CollectiveReduceV2").values() if "replica0" in node.name]
    return graph, sorted(found, key=lambda node: int(constant(graph, node.input[3])))


def _sizes(graph, sums) -> list[int]:
    return [tensor.shape.num_elements() for tensor in summed(graph, sums)]


LANE = Lane(0, 0, "ring", tf.float32, 40)
LOADS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=12)


@given(LOADS, st.integers(1, 90))
def test_every_element_is_in_one_bucket_and_buckets_are_full_and_in_order(loads: list, limit: int):
    lane = Lane(0, 0, "ring", tf.float32, limit)
    made = [Load(lane, f"load{index}", ready, (size,), ()) for index, (size, ready) in enumerate(loads)]
    buckets = fill(made)
    most = max(limit // 4, 1)
    sizes = [sum(piece.size for piece in bucket) for bucket in buckets]
    assert all(0 < size <= most for size in sizes)
    for before, after in pairwise(buckets):
        assert sum(piece.size for piece in before) + after[0].size > most, "it had room"
        assert before[-1].load.ready <= after[0].load.ready
    for load in made:
        pieces = [piece for bucket in buckets for piece in bucket if piece.load == load]
        starts = [piece.start for piece in pieces]
        assert starts == list(range(0, load.size, most))
        assert sum(piece.size for piece in pieces) == load.size


def test_small_tensors_are_merged_and_large_ones_cut():
    loads = [Load(LANE, str(index), index, (size,), ()) for index, size in enumerate((3, 4, 5, 23, 6, 2))]
    found = [[(piece.load.label, piece.start, piece.size) for piece in bucket] for bucket in fill(loads)]
    assert found == [
        [("0", 0, 3), ("1", 0, 4)], [("2", 0, 5)], [("3", 0, 10)], [("3", 10, 10)], [("3", 20, 3), ("4", 0, 6)],
        [("5", 0, 2)],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "builder, cpus, mebibytes, expected",
    [
        (AllReduce(), (1, 1), 2, [1024] * 2), (AllReduce(), (1, 1), 12, [1536] * 8),
        (Parallax(), (1, 1), 12, [1536] * 8), (AllReduce(), (1, 1), 64, [4096] * 16),
        (AllReduce(bucket_bytes=3 << 20), (1, 1), 6, [3072] * 2), (AllReduce(), (2,), 8, [4096] * 2),
    ],
    ids=str,
)  # fmt: skip
def test_over_machines_the_gradients_of_a_small_model_fill_several_buckets(
    builder, cpus: tuple[int, ...], mebibytes: int, expected: list[int]
):
    """Unless the strategy says how large they are: in one bucket, all would wait for the end of the backward pass."""
    variables = {f"kernel{index}": tf.Variable(tf.ones((mebibytes, 64, 256))) for index in range(16)}

    def loss_of(variables, x):
        return tf.cast(tf.reduce_mean(x), "float32") * tf.add_n([tf.reduce_sum(each) for each in variables.values()])

    item = capture(trace(dense_step(variables, loss_of=loss_of), variables))
    graph = build(item, placed_on(item, builder, *cpus)).graph_def
    sums = [
        node for op in ("CollectiveReduceV2", "SplitV") for name, node in nodes_of(graph, op).items()
        if re.search("replica0/(sum|parts)$", name)
    ]
    assert sorted(4 * size // 1024 for size in _sizes(graph, sums)) == expected


def test_the_last_layer_travels_first_and_waits_for_no_other():
    graph, sums = _sums(layered_item(), AllReduce(bucket_bytes=8 * 20))
    before = [ancestors(graph.node, node.name) for node in sums]
    carried = [
        [name for name in (*SHAPES, "scale") if any(node.startswith(f"sent/0/{name}/") for node in nodes)]
        for nodes in before
    ]
    # The scale comes last in the network, and the third matrix is small enough to go with it.
    assert carried == [["third", "scale"], ["second"], ["first"]]
    backward = [{node for node in nodes if "MatMul" in node and "gradient" in node.lower()} for nodes in before]
    assert len(backward[0]) < len(backward[1]) < len(backward[2])


def test_groups_decide_who_may_travel_together():
    graph, sums = _sums(layered_item(), AllReduce(chunk_size=2))
    assert sorted(_sizes(graph, sums)) == [4 * 2 + 1, 3 * 5 + 5 * 4], "and what is empty does not travel"


@pytest.mark.parametrize("spec, begun", [("RING", "sum"), ("NCCL", "parts")])
@pytest.mark.parametrize("cpus", [(1, 1), (2, 1, 1)])
def test_over_machines_one_bucket_more_than_machines_is_under_way(
    cpus: tuple[int, ...], spec: str, begun: str, monkeypatch
):
    monkeypatch.setattr(packing, "ALONE_BYTES", 8)
    item = layered_item(2, second="float32")
    builder = AllReduce(bucket_bytes=24, chunk_size=1, all_reduce_spec=spec)
    graph = build(item, placed_on(item, builder, *cpus)).graph_def
    chains: dict[tuple[str, str], list[Any]] = {}
    for node in graph.node:
        if re.fullmatch(f"all_reduce/.*/replica[0-9]+/{begun}", node.name):
            _, occurrence, _, _, replica, _ = node.name.split("/")
            chains.setdefault((occurrence, replica), []).append(node)
    assert len(chains) == 2 * len(cpus), "one for each machine and each time that gradients are applied"
    for (_, replica), nodes in chains.items():
        nodes.sort(key=lambda node: int(node.name.split("/bucket")[1].split("/")[0]))
        awaited = [[source for source in node.input if naming.is_control(source)] for node in nodes]
        sums = [node.name.replace(f"{replica}/{begun}", f"{replica}/sum") for node in nodes]
        under_way = len(cpus) + 1
        assert awaited == [[]] * under_way + [[f"^{name}"] for name in sums[:-under_way]]
        # The last one has a scalar only, which is not cut.
        groups = 4 if begun == "sum" else 3
        assert len({node.name.split("/")[2] for node in nodes}) == groups, "the chain goes through all groups"


@pytest.mark.parametrize("cpus, kibibytes", [((1, 1), 1023), ((1, 1, 1), 512), ((1,) * 6, 1024), ((2, 2), 127)])
def test_over_machines_each_adds_up_a_part_of_a_bucket(cpus: tuple[int, ...], kibibytes: int):
    """In the order of the machines, and a small bucket whole. Where few machines are built, they stand for the rest."""
    variables = {"kernel": tf.Variable(tf.zeros((kibibytes, 128), "float64"))}
    step = dense_step(variables, loss_of=lambda given, x: tf.reduce_mean(x) * tf.reduce_sum(given["kernel"]))
    item = capture(trace(step, variables))
    graph = build(item, placed_on(item, AllReduce(), *cpus)).graph_def
    assert not nodes_of(graph, "CollectiveReduceV2")
    added = {name: node for name, node in nodes_of(graph, "AddN").items() if re.search("/part[0-9]+/added$", name)}
    parts = len(cpus) if kibibytes > 127 else 1
    assert [node.device.split("/")[3] for node in added.values()] == [f"task:{task}" for task in range(parts)]
    assert {node.attr["N"].i for node in added.values()} == {len(cpus)}
    sizes = [tensor.shape.num_elements() for tensor in summed(graph, list(added.values()))]
    assert sum(sizes) == 128 * kibibytes and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("cpus, kind, reduce", [((3,), "cpus", "RING"), ((2, 2), "gpus", "NCCL")])
def test_within_a_machine_and_with_nccl_no_collective_waits_for_another(cpus: tuple[int, ...], kind: str, reduce: str):
    item = layered_item()
    placement = placed_on(item, AllReduce(bucket_bytes=24, all_reduce_spec=reduce), *cpus, kind=kind)
    nodes = nodes_of(build(item, placement).graph_def, "CollectiveReduceV2").values()
    assert len(nodes) > len(placement.replicas) * 6
    assert not any(naming.is_control(source) for node in nodes for source in node.input)


@pytest.mark.parametrize("active", [1, 2, 3])
def test_replicas_agree_on_every_bucket_and_its_key(active: int):
    item = layered_item(2, second="float32")
    graph = build(item, placed(item, AllReduce(bucket_bytes=24, chunk_size=2), machine(3)), active).graph_def
    keys: dict[str, dict[str, int]] = {}
    for name, node in nodes_of(graph, "CollectiveReduceV2").items():
        bucket, replica, _ = name.rsplit("/", 2)
        keys.setdefault(bucket, {})[replica] = int(constant(graph, node.input[3]))
    assert all(set(found) == {"replica0", "replica1", "replica2"} for found in keys.values())
    assert all(len(set(found.values())) == 1 for found in keys.values())
    assert len({found["replica0"] for found in keys.values()}) == len(keys) > 2 * 10


def test_a_replica_without_examples_sends_zeros_that_take_no_room_in_the_graph():
    variables = {"w": tf.Variable(np.ones((3, 50_000)))}

    step = dense_step(variables, loss_of=lambda variables, x: tf.reduce_mean(x @ variables["w"]))
    item = capture(trace(step, variables))
    graph = build(item, placed(item, AllReduce(), machine(3)), 1).graph_def
    assert graph.ByteSize() < 100_000


BUCKETS = [1, 8, 20, 24, 100, 160, 1 << 30]


@pytest.mark.quick("1-2-sizes0", "24-2-sizes0")
@pytest.mark.parametrize("cpus, sizes", [(2, (5,)), (3, (7, 2)), (3, (1,))])
@pytest.mark.parametrize("bucket", BUCKETS)
def test_no_size_of_buckets_changes_a_number(bucket: int, cpus: int, sizes: tuple[int, ...]):
    item, values = layered_item(), layered_values()
    random = np.random.default_rng(3)
    batches = [random.normal(size=(size, 3)) for size in sizes]
    found = assert_as_one_device(item, placed(item, AllReduce(bucket_bytes=bucket), machine(cpus)), batches, values)
    assert not any(np.array_equal(found[name], values[name]) for name in (*SHAPES, "scale"))


@pytest.mark.parametrize("builder, bucket", [(AllReduce, 4), (Parallax, 36), (AllReduce, 1 << 20)])
def test_types_of_one_group_are_cut_each_by_its_own_size(bucket: int, builder):
    dtypes = {"first": "float32", "third": "float16", "scale": "float32"}
    item, values = layered_item(**dtypes), layered_values(**dtypes)
    batches = [np.random.default_rng(4).normal(size=(6, 3))]
    alone = train(item, placed(item, builder(), machine(1)), values, batches)
    found = train(item, placed(item, builder(bucket_bytes=bucket), machine(2)), values, batches)
    for name, error in (("first", 1e-6), ("second", 1e-12), ("third", 2e-3), ("scale", 1e-6)):
        assert found[name].dtype == alone[name].dtype
        assert_same({name: alone[name]}, {name: found[name]}, error)
    graph, sums = _sums(item, builder(bucket_bytes=bucket))
    widths = [tf.as_dtype(node.attr["T"].type).size for node in sums]
    assert {2, 4, 8} == set(widths)
    assert all(size * width <= max(bucket, 8) for size, width in zip(_sizes(graph, sums), widths, strict=True))


def test_the_collectives_of_two_graphs_of_one_session_do_not_meet():
    """For batches of a usual size and of others, for fewer busy replicas, and for another step: other shapes."""
    values = layered_values()
    found = []
    for cpus in (1, 3):
        items = [layered_item(times) for times in (1, 2)]
        session = LocalSession(placed(items[0], AllReduce(chunk_size=1), machine(cpus)))
        steps = [session.add(items[0], usual=6), session.add(items[1])]
        session.load({name: values[name] for name in session.known})
        for total in (6, 5, 6, 2, 1, 7, 6):
            for step in steps:
                step([np.linspace(-1.0, 1.0, 3 * total).reshape(total, 3)], total)
        found.append(session.read(session.known))
        session.close()
    assert_same(*found)
