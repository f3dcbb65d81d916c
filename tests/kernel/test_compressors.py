"""Compressors: what they send, what they keep, and what comes of it, against the same arithmetic in numpy."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.kernel import build
from autodist_core.plan import bytes_per_step
from autodist_core.runtime.local.session import LocalSession
from autodist_core.strategy import AllReduce
from tests.capture.plain import RATE
from tests.kernel.compressing import (
    CAST,
    EXACT,
    FEEDBACK,
    HALF,
    WIRES,
    Replicas,
    after_steps,
    kept,
    linear_item,
    name_of,
    power,
    sent_by,
)
from tests.kernel.graphs import (
    compiled,
    copies_item,
    dense_item,
    layered_item,
    layered_values,
    layered_variables,
    machine,
    nodes_of,
    placed,
    table_item,
    train,
)


def in_numpy(batches: list[np.ndarray], wire, feedback: bool) -> tuple[np.ndarray, np.ndarray]:
    """The variable and the residuals of two replicas, by the definition."""
    w, error = np.zeros(batches[0].shape[1:]), np.zeros((2, *batches[0].shape[1:]))
    for batch in batches:
        local = np.stack([part.sum(axis=0) / len(batch) for part in np.array_split(batch, 2)])
        wanted = local + error if feedback else local
        sent = wanted.astype(wire)
        error = wanted - sent.astype("float64")
        w = w - RATE * (sent[0] + sent[1]).astype("float64")
    return w, error


@pytest.mark.parametrize("builder", HALF, ids=str)
def test_half_precision_is_the_cast_the_sum_and_the_residual(builder: AllReduce):
    """Uneven parts, and at times a replica without examples, whose residual counts all the same."""
    random = np.random.default_rng(12)
    batches = [random.normal(size=(size, 4, 3)) for size in (5, 2, 1, 6, 1, 1, 3)]
    feedback = builder.compressor.endswith("EF")
    w, error = in_numpy(batches, WIRES[builder.wire_dtype], feedback)
    with Replicas(linear_item((4, 3)), builder) as replicas:
        np.testing.assert_allclose(replicas.run(*batches), w, rtol=0.0, atol=1e-12)
        if feedback:
            np.testing.assert_allclose(kept(replicas.session, "error"), error, rtol=0.0, atol=1e-12)
            assert np.abs(error).min(axis=(1, 2)).max() > 0.0
        else:
            assert replicas.session.read_added() == {}


@pytest.mark.parametrize("builder", HALF, ids=str)
def test_what_a_replica_sends_is_of_the_type_of_the_wire(builder: AllReduce):
    item = layered_item(first="float32", third="float16")
    graph = build(item, placed(item, builder)).graph_def
    types = Counter(tf.as_dtype(n.attr["T"].type).name for n in nodes_of(graph, "CollectiveReduceV2").values())
    assert types == ({"float16": 2} if builder.wire_dtype == "float16" else {"float16": 2, "bfloat16": 2})
    writes = nodes_of(graph, "AssignSubVariableOp").values()
    assert {tf.as_dtype(node.attr["dtype"].type).name for node in writes} == {"float64", "float32", "float16"}


def test_feedback_keeps_what_cancelling_gradients_hide():
    """Halves of a large number that cancel between the replicas, and a small one that both have."""
    batch = np.array([[1000.0, 0.0], [-1000.0, 0.0]]) + 0.02
    steps = 200
    expected = -RATE * steps * 0.02
    without, with_it = (after_steps(builder, batch, steps) for builder in (CAST, FEEDBACK))
    assert without[0] == 0.0, "0.01 is below the last digit of 500"
    assert abs(with_it[0] - expected) <= RATE * 0.25 * 2, "two residuals, of half a digit each"
    assert abs(with_it[0] - expected) < 0.2 * abs(without[0] - expected)
    np.testing.assert_allclose(with_it[1], expected, rtol=1e-3)


@pytest.mark.parametrize("builder", [FEEDBACK, power(1)], ids=str)
def test_a_sum_that_is_not_finite_changes_no_residual(builder: AllReduce):
    random = np.random.default_rng(3)
    good = random.normal(size=(4, 4, 3))
    with Replicas(linear_item((4, 3)), builder) as replicas:
        replicas.run(good)
        before = replicas.session.read_added()
        bad = good.copy()
        bad[-1] = np.inf
        assert not np.isfinite(replicas.run(bad)).all()
        after = replicas.session.read_added()
    assert before.keys() == after.keys() and len(before) >= 2
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    assert any(np.abs(value).max() > 0.0 for value in before.values())


@pytest.mark.quick("2-HorovodCompressor float16", "3-HorovodCompressorEF bfloat16", "3-PowerSGDCompressor 1")
@pytest.mark.parametrize("builder", [*HALF, power(1), power(2, bucket_bytes=16)], ids=name_of)
@pytest.mark.parametrize("cpus", [2, 3])
def test_all_replicas_hold_the_same_bits(builder: AllReduce, cpus: int):
    item, variables = layered_item(second="float32"), layered_variables(second="float32")
    session = LocalSession(placed(item, builder, machine(cpus)))
    step, copies = session.add(item), session.add(copies_item(variables))
    session.load({name: variable.numpy() for name, variable in variables.items()})
    random = np.random.default_rng(2)
    for size in (7, 1, 2, 5):
        step([random.normal(size=(size, 3))], size)
    for found in map(np.asarray, copies([np.zeros((cpus, 3))], cpus)):
        assert len(found) == cpus and np.isfinite(found).all()
        assert all(copy.tobytes() == found[0].tobytes() for copy in found)
    directions = [value for name, value in session.read_added().items() if "directions/second" in name]
    assert len(directions) == (cpus if builder.compressor == "PowerSGDCompressor" else 0)
    assert all((value == directions[0]).all() for value in directions)
    session.close()


@pytest.mark.parametrize("builder", [*HALF, power(1)], ids=str)
def test_one_replica_sends_and_keeps_nothing(builder: AllReduce):
    item, values = layered_item(), layered_values()
    batches = [np.random.default_rng(4).normal(size=(6, 3))] * 3
    plain, found = (train(item, placed(item, each, machine(1)), values, batches) for each in (EXACT, builder))
    for name, value in plain.items():
        np.testing.assert_array_equal(found[name], value)
    graph = build(item, placed(item, builder, machine(1)))
    assert not graph.added and not nodes_of(graph.graph_def, "CollectiveReduceV2")


@pytest.mark.parametrize("builder", [FEEDBACK, power(1)], ids=str)
def test_an_update_that_comes_twice_goes_on_with_the_residual_of_the_first(builder: AllReduce):
    batches = [np.random.default_rng(14).normal(size=(size, 4, 3)) for size in (5, 1)]
    with Replicas(linear_item((4, 3)), builder) as once, Replicas(linear_item((4, 3), times=2), builder) as twice:
        expected = once.run(batches[0], batches[0], batches[1], batches[1])
        np.testing.assert_allclose(twice.run(*batches), expected, rtol=0.0, atol=1e-12)
        residuals = once.session.read_added(), twice.session.read_added()
    assert residuals[0].keys() == residuals[1].keys()
    for name, value in residuals[0].items():
        np.testing.assert_allclose(residuals[1][name], value, rtol=0.0, atol=1e-12)


def test_rows_are_not_compressed():
    item = table_item()
    values = {v.name: np.random.default_rng(1).normal(size=v.shape) for v in item.variables}
    batches = [np.arange(8, dtype="int32").reshape(4, 2) % 6]
    exact, found = (train(item, placed(item, each), values, batches) for each in (EXACT, CAST))
    np.testing.assert_array_equal(found["table"], exact["table"])
    assert not np.array_equal(found["scale"], exact["scale"])


DTYPES = [{}, {"first": "float32", "scale": "float16"}, {"first": "float32", "second": "bfloat16", "third": "float16"}]
BUILDERS = [EXACT, *HALF, power(1), power(2), power(50)]


@pytest.mark.quick(
    "NoneCompressor float16-float64-2", "HorovodCompressor float16-float64+float32+bfloat16+float16-3",
    "HorovodCompressorEF float16-float64+float32+float16-2", "PowerSGDCompressor 1-float64-3",
    "PowerSGDCompressor 2-float64+float32+bfloat16+float16-2",
)  # fmt: skip
@pytest.mark.parametrize(("builder", "dtypes", "cpus"), [
    (builder, dtypes, 2 + (row + column) % 2) for row, builder in enumerate(BUILDERS)
    for column, dtypes in enumerate(DTYPES)
], ids=name_of)  # fmt: skip
def test_the_plan_counts_the_bytes_that_enter_the_collectives(builder: AllReduce, dtypes: dict, cpus: int):
    item = layered_item(2, **dtypes)
    plans = compiled(item, builder, machine(cpus))
    planned = sum(bytes_per_step(plan, plans.replicas, times=2) for plan in plans.variables)
    for bucket, active in ((30, 1), (64, cpus), (4 << 20, cpus)):
        sized = AllReduce(**{**vars(builder), "bucket_bytes": bucket})
        sent = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in sent_by(item, sized, cpus, active))
        assert sent * 2 * (cpus - 1) == planned, (bucket, active)


def test_the_session_makes_each_residual_once_and_loads_it():
    item = linear_item((4, 3))
    random = np.random.default_rng(15)
    batches = [random.normal(size=(size, 4, 3)) for size in (4, 1, 3, 2)]
    with Replicas(item, FEEDBACK) as whole, Replicas(item, FEEDBACK) as first, Replicas(item, FEEDBACK) as second:
        expected = whole.run(*batches)
        between = first.run(*batches[:2])
        second.session.load({"w": between})
        # Loaded before there is any such variable, and read as if there were.
        second.session.load_added(first.session.read_added())
        assert second.session.read_added().keys() == first.session.read_added().keys()
        np.testing.assert_array_equal(second.run(*batches[2:]), expected)
        second.session.load_added({})
        assert all((value == 0.0).all() for value in second.session.read_added().values())


def test_what_is_kept_is_written_behind_the_barrier():
    graph = build(dense_item(), placed(dense_item(), FEEDBACK))
    assert "AssignVariableOp: 0 -> 4" in next(line for line in str(graph).splitlines() if line.startswith("Update: "))
    writes = nodes_of(graph.graph_def, "AssignVariableOp").values()
    assert sorted(node.device for node in writes) == ["/device:CPU:0"] * 2 + ["/device:CPU:1"] * 2
    assert all("^barrier/0" in node.input for node in writes)
    assert [str(kept) for kept in graph.added] == [
        "compressor/error/w@replica0 : float64[3,2]", "compressor/error/w@replica1 : float64[3,2]",
        "compressor/error/b@replica0 : float64[2]", "compressor/error/b@replica1 : float64[2]",
    ]  # fmt: skip


@pytest.mark.parametrize("builder", [FEEDBACK, power(1, bucket_bytes=64)], ids=str)
def test_what_a_gpu_replica_computes_and_keeps_is_on_its_gpu(builder: AllReduce):
    item = layered_item(first="float32", second="float32")
    graph = build(item, placed(item, builder, machine(gpus=2)), 1)
    assert {kept.device for kept in graph.added} == {"/device:GPU:0", "/device:GPU:1"}
    computed = {"Cast", "MatMul", "Qr", "Fill", "Switch", "Merge", "Slice"}
    for node in graph.graph_def.node:
        for index in (0, 1):
            if f"replica{index}" in node.name and node.op in computed:
                assert node.device == f"/device:GPU:{index}" or node.name.startswith("feed/"), node.name
    ops = {node.op for node in graph.graph_def.node}
    assert {"Fill", "Switch", "Merge", "ReadVariableOp", "AssignVariableOp"} <= ops
    hints = {n.attr["communication_hint"].s for n in nodes_of(graph.graph_def, "CollectiveReduceV2").values()}
    assert hints == {b"nccl"}
