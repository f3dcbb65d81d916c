"""Compressors: what they send, what they keep, and what comes of it, against the same arithmetic in numpy."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.capture import capture
from autodist_core.kernel import PIPELINE, build
from autodist_core.kernel.passes.synchronizer import AllReduceSynchronizer
from autodist_core.plan import bytes_per_step
from autodist_core.runtime import DistributedSession
from autodist_core.strategy import AllReduce
from autodist_core.strategy.synchronizers import AllReducePlan
from autodist_core.strategy.wire import FACTORS, Wire, wire
from tests.capture.plain import RATE, descend, gradients_of, trace
from tests.kernel.graphs import (
    SHAPES,
    compiled,
    copies_item,
    dense_item,
    layered_item,
    layered_variables,
    machine,
    nodes_of,
    placed,
    summed,
    table_item,
    train,
)
from tests.support.compare import assert_same

WIRES = {"float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}
HALF = [
    AllReduce(compressor=compressor, wire_dtype=wire)
    for compressor in ("HorovodCompressor", "HorovodCompressorEF") for wire in WIRES
]  # fmt: skip
EXACT, CAST, FEEDBACK = AllReduce(), HALF[0], HALF[2]


def power(rank: int, **options) -> AllReduce:
    return AllReduce(compressor="PowerSGDCompressor", power_sgd_rank=rank, **options)


def _name(value: AllReduce | dict | int) -> str:
    """A short id of a builder, or of variables' types besides float64."""
    if isinstance(value, AllReduce):
        detail = value.power_sgd_rank if value.compressor == "PowerSGDCompressor" else value.wire_dtype
        return f"{value.compressor} {detail}"
    return "+".join(["float64", *value.values()]) if isinstance(value, dict) else str(value)


def linear_item(shape: tuple[int, ...], dtype: str = "float64", times: int = 1) -> GraphItem:
    """A step whose gradient is the mean of the batch's rows, each of the variable's shape, whatever the weights are."""
    variables = {"w": tf.Variable(tf.zeros(shape, dtype))}

    def loss(variables, x):
        return tf.reduce_sum(tf.reduce_mean(x, axis=0) * variables["w"])

    def step(tracer, x):
        for _ in range(times):
            value, gradients = gradients_of(variables, x, loss)
            tracer.apply(gradients, descend(variables))
        return [value]

    return capture(trace(step, variables, [tf.TensorSpec((None, *shape), dtype, "x")]))


class Replicas:
    """A session of a one-variable step, and what it holds after some batches."""

    def __init__(self, item: GraphItem, builder: AllReduce, cpus: int = 2) -> None:
        self.session = DistributedSession(placed(item, builder, machine(cpus)))
        self.step = self.session.add(item)
        self.session.load({v.name: np.zeros(v.shape, v.dtype) for v in item.variables})

    def run(self, *batches: np.ndarray) -> np.ndarray:
        """The variable after these batches."""
        for batch in batches:
            self.step([batch], len(batch))
        return self.session.read(["w"])["w"]

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


def kept(session: DistributedSession, what: str, name: str = "w") -> np.ndarray:
    """What each replica keeps, one behind the other."""
    values = session.read_added()
    names = [f"compressor/{what}/{name}@replica{index}" for index in range(len(session.placement.replicas))]
    return np.stack([values[name] for name in names])


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
    item = layered_item(layered_variables(first="float32", third="float16"))
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
    without, with_it = (_after(builder, batch, steps) for builder in (CAST, FEEDBACK))
    assert without[0] == 0.0, "0.01 is below the last digit of 500"
    assert abs(with_it[0] - expected) <= RATE * 0.25 * 2, "two residuals, of half a digit each"
    assert abs(with_it[0] - expected) < 0.2 * abs(without[0] - expected)
    np.testing.assert_allclose(with_it[1], expected, rtol=1e-3)


def _after(builder: AllReduce, batch: np.ndarray, steps: int) -> np.ndarray:
    with Replicas(linear_item(batch.shape[1:]), builder) as replicas:
        return replicas.run(*[batch] * steps)


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


def in_numpy_by_powers(batches: list[np.ndarray], start: np.ndarray, cpus: int) -> tuple[np.ndarray, np.ndarray]:
    """PowerSGD by the definition: the variable, and the projection's rest that each replica keeps."""
    shape = batches[0].shape[1:]
    w, error, directions = np.zeros(shape), np.zeros((cpus, *shape)), start
    for batch in batches:
        wanted = np.stack([part.sum(axis=0) / len(batch) for part in np.array_split(batch, cpus)]) + error
        basis, _ = np.linalg.qr(wanted.sum(axis=0) @ directions)
        right = wanted.sum(axis=0).T @ basis
        error = wanted - basis @ (basis.T @ wanted)
        directions, _ = np.linalg.qr(right)
        w = w - RATE * basis @ right.T
    return w, error


@pytest.mark.parametrize("rank, cpus", [(1, 2), (2, 3)])
def test_powers_are_those_of_the_definition(rank: int, cpus: int):
    """A column's sign is nobody's business: it falls out of both products."""
    random = np.random.default_rng(21)
    batches = [random.normal(size=(size, 7, 6)) for size in (6, 5, 1, 2, 7)]
    with Replicas(linear_item((7, 6)), power(rank), cpus) as replicas:
        replicas.run(0.0 * batches[0])
        start = kept(replicas.session, "directions")
        assert (start == start[0]).all(), "all replicas start alike"
        w, error = in_numpy_by_powers(batches, start[0], cpus)
        np.testing.assert_allclose(replicas.run(*batches), w, rtol=0.0, atol=1e-12)
        np.testing.assert_allclose(kept(replicas.session, "error"), error, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("rank, sizes", [(2, (2, 2, 2)), (2, (1, 2, 1)), (2, (2, 1, 2)), (1, (1, 1, 1))])
def test_a_rank_that_holds_the_whole_gradient_loses_nothing(rank: int, sizes: tuple[int, ...]):
    """The gradient of a matrix by so few examples has no higher rank."""
    item, values = layered_item(layered_variables()), {n: v.numpy() for n, v in layered_variables().items()}
    random = np.random.default_rng(5)
    batches = [random.normal(size=(size, 3)) for size in sizes]
    exact = train(item, placed(item, EXACT), values, batches)
    found = train(item, placed(item, power(rank)), values, batches)
    assert len(_sent(item, power(rank))) == 2, "one bucket of each round"
    assert_same({name: exact[name] for name in (*SHAPES, "scale")}, {name: found[name] for name in (*SHAPES, "scale")})


@pytest.mark.parametrize("rank", [3, 4, 100])
def test_full_rank_travels_as_it_is_and_is_exact(rank: int):
    item, values = layered_item(layered_variables()), {n: v.numpy() for n, v in layered_variables().items()}
    batches = [np.random.default_rng(6).normal(size=(7, 3))]
    exact = train(item, placed(item, EXACT), values, batches)
    found = train(item, placed(item, power(rank)), values, batches)
    for name in (*SHAPES, "scale", "outputs"):
        np.testing.assert_array_equal(found[name], exact[name])


def _factors_of_full_rank(plan: AllReducePlan, shape: tuple[int, ...], dtype: str) -> Wire:
    """As nobody would send them: more numbers than the matrix has."""
    if len(shape) != 2:
        return wire(plan, shape, dtype)
    rank = min(shape)
    return Wire(FACTORS, dtype, ((shape[0], rank), (shape[1], rank)), feedback=True)


@pytest.mark.parametrize("cpus, active", [(2, 2), (3, 3), (3, 1)])
def test_factors_of_full_rank_are_exact_and_owe_nothing(cpus: int, active: int):
    item, values = layered_item(layered_variables()), {n: v.numpy() for n, v in layered_variables().items()}
    placement = placed(item, power(1), machine(cpus))
    kernels = [AllReduceSynchronizer(_factors_of_full_rank) if isinstance(kernel, AllReduceSynchronizer) else kernel
               for kernel in PIPELINE]  # fmt: skip
    batches = np.random.default_rng(23).normal(size=(4, active, 3))
    exact = train(item, placed(item, EXACT, machine(cpus)), values, list(batches))
    session = DistributedSession(placement)
    session.add(item)
    session.load(values)
    step = session.import_graph(build(item, placement, active, kernels), "full")
    for batch in batches:
        step(*np.split(batch, active), *[1.0] * active, float(active))
    found, left = session.read(session.known), session.read_added()
    session.close()
    assert_same({name: exact[name] for name in (*SHAPES, "scale")}, {name: found[name] for name in (*SHAPES, "scale")})
    for name in SHAPES:
        # Of one replica's part something may lie outside the sum's columns; it is made up for by the others'.
        owed = [left[f"compressor/error/{name}@replica{index}"] for index in range(cpus)]
        assert np.abs(np.sum(owed, axis=0)).max() <= 1e-14


def _sent(item: GraphItem, builder: AllReduce, cpus: int = 2, active: int | None = None) -> list[tf.Tensor]:
    """What replica 0 puts into collectives."""
    graph = build(item, placed(item, builder, machine(cpus)), active).graph_def
    found = nodes_of(graph, "CollectiveReduceV2").values()
    return summed(graph, [node for node in found if "replica0" in node.name])


def test_one_direction_that_is_kept_finds_the_matrix():
    """The mean is of rank one and always the same: the first step finds its direction, whatever it starts from."""
    random = np.random.default_rng(7)
    target = np.outer(random.normal(size=8), random.normal(size=5))
    noise = random.normal(size=(4, 8, 5))
    batch = target + noise - noise.mean(axis=0)
    found = _after(power(1), batch, 10)
    np.testing.assert_allclose(found, -RATE * 10 * target, rtol=0.0, atol=1e-12)


def test_feedback_makes_up_for_directions_that_one_column_cannot_hold():
    """A gradient of rank three through one column: what is left behind comes in later steps."""
    random = np.random.default_rng(9)
    batch = random.normal(size=(4, 8, 3)) @ random.normal(size=(3, 5))
    mean, steps = batch.mean(axis=0), 150
    found = _after(power(1), batch, steps)
    assert np.abs(found + RATE * steps * mean).max() <= 0.05 * np.abs(RATE * steps * mean).max()


@pytest.mark.parametrize(
    "batch",
    [np.zeros((2, 6, 5)), np.ones((2, 6, 5)), np.eye(6, 5)[None] * np.array([1.0, 0.0])[:, None, None]],
    ids=["nothing", "rank one", "one replica only"],
)
def test_dependent_columns_are_no_division_by_zero(batch: np.ndarray):
    item = linear_item(batch.shape[1:])
    with Replicas(item, power(2)) as replicas:
        found = replicas.run(*[batch] * 5)
        values = replicas.session.read_added()
    assert np.isfinite(found).all() and all(np.isfinite(value).all() for value in values.values())
    if np.linalg.matrix_rank(batch.sum(axis=0)) <= 2:
        np.testing.assert_allclose(found, -RATE * 5 * batch.mean(axis=0), rtol=0.0, atol=1e-12)


@pytest.mark.quick("2-HorovodCompressor float16", "3-HorovodCompressorEF bfloat16", "3-PowerSGDCompressor 1")
@pytest.mark.parametrize("builder", [*HALF, power(1), power(2, bucket_bytes=16)], ids=_name)
@pytest.mark.parametrize("cpus", [2, 3])
def test_all_replicas_hold_the_same_bits(builder: AllReduce, cpus: int):
    variables = layered_variables(second="float32")
    item = layered_item(variables)
    session = DistributedSession(placed(item, builder, machine(cpus)))
    step, copies = session.add(item), session.add(copies_item(variables))
    session.load({name: variable.numpy() for name, variable in variables.items()})
    random = np.random.default_rng(2)
    for size in (7, 1, 2, 5):
        step([random.normal(size=(size, 3))], size)
    for found in copies([np.zeros((cpus, 3))], cpus):
        assert len(found) == cpus and np.isfinite(found).all()
        assert all(copy.tobytes() == found[0].tobytes() for copy in found)
    directions = [value for name, value in session.read_added().items() if "directions/second" in name]
    assert len(directions) == (cpus if builder.compressor == "PowerSGDCompressor" else 0)
    assert all((value == directions[0]).all() for value in directions)
    session.close()


@pytest.mark.parametrize("builder", [*HALF, power(1)], ids=str)
def test_one_replica_sends_and_keeps_nothing(builder: AllReduce):
    item = layered_item(layered_variables())
    values = {name: variable.numpy() for name, variable in layered_variables().items()}
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
], ids=_name)  # fmt: skip
def test_the_plan_counts_the_bytes_that_enter_the_collectives(builder: AllReduce, dtypes: dict, cpus: int):
    item = layered_item(layered_variables(**dtypes), times=2)
    plans = compiled(item, builder, machine(cpus))
    planned = sum(bytes_per_step(plan, plans.replicas, times=2) for plan in plans.variables)
    for bucket, active in ((30, 1), (64, cpus), (4 << 20, cpus)):
        sized = AllReduce(**{**vars(builder), "bucket_bytes": bucket})
        sent = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in _sent(item, sized, cpus, active))
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


def test_what_is_kept_is_written_by_a_kernel_of_its_own_behind_the_barrier():
    graph = build(dense_item(), placed(dense_item(), FEEDBACK))
    assert "Residuals: AssignVariableOp: 0 -> 4" in str(graph)
    writes = nodes_of(graph.graph_def, "AssignVariableOp").values()
    assert sorted(node.device for node in writes) == ["/device:CPU:0"] * 2 + ["/device:CPU:1"] * 2
    assert all("^barrier/0" in node.input for node in writes)
    assert [str(kept) for kept in graph.added] == [
        "compressor/error/w@replica0 : float64[3,2]", "compressor/error/w@replica1 : float64[3,2]",
        "compressor/error/b@replica0 : float64[2]", "compressor/error/b@replica1 : float64[2]",
    ]  # fmt: skip


@pytest.mark.parametrize("builder", [FEEDBACK, power(1, bucket_bytes=64)], ids=str)
def test_what_a_gpu_replica_computes_and_keeps_is_on_its_gpu(builder: AllReduce):
    item = layered_item(layered_variables(first="float32", second="float32"))
    graph = build(item, placed(item, builder, machine(gpus=2)), 1)
    assert {kept.device for kept in graph.added} == {"/device:GPU:0", "/device:GPU:1"}
    for node in graph.graph_def.node:
        for index in (0, 1):
            if f"replica{index}" in node.name and node.op in ("Cast", "MatMul", "Qr", "Fill", "SelectV2", "Slice"):
                assert node.device == f"/device:GPU:{index}" or node.name.startswith("feed/"), node.name
    ops = {node.op for node in graph.graph_def.node}
    assert {"Fill", "SelectV2", "ReadVariableOp", "AssignVariableOp"} <= ops
    hints = {n.attr["communication_hint"].s for n in nodes_of(graph.graph_def, "CollectiveReduceV2").values()}
    assert hints == {b"nccl"}
