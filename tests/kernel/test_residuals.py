"""What compressors send as the plan counts it, and what they keep: made once, written behind the barrier."""

import numpy as np
import pytest

from autodist_core.kernel import build
from autodist_core.plan import bytes_per_step
from autodist_core.strategy import AllReduce
from tests.kernel.compressing import EXACT, FEEDBACK, HALF, Replicas, linear_item, name_of, power, sent_by
from tests.kernel.graphs import compiled, dense_item, layered_item, layered_variables, machine, nodes_of, placed

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
    item = layered_item(layered_variables(**dtypes), times=2)
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
    item = layered_item(layered_variables(first="float32", second="float32"))
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
