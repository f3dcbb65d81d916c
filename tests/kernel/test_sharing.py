"""Which strategies let the replicas of one process share their weights."""

import pytest

from autodist_core.kernel import build
from autodist_core.kernel.placement.arrangement import memories
from autodist_core.strategy import PS, AllReduce, Parallax
from tests.kernel.graphs import compiled, dense_item, machine, placed_on, table_item
from tests.support.machines import machines
from tests.support.strategies import LOSSY

EXACT = [AllReduce(), AllReduce(bucket_bytes=8), PS(), Parallax(), PS(local_proxy_variable=True)]
APART = [*LOSSY, Parallax(compressor="HorovodCompressorEF"), PS(sync=False), Parallax(staleness=3)]


@pytest.mark.parametrize("builder", [*EXACT, *APART], ids=str)
def test_what_is_exact_shares_unless_told_otherwise_and_what_needs_a_copy_for_each_replica_does_not(builder):
    strategy = compiled(table_item() if builder in APART else dense_item(), builder, machine(cpus=2))
    shared = (0, 1) if builder in APART else (0, 0)
    assert [memories(strategy, asked) for asked in (None, True, False)] == [shared, shared, (0, 1)]


@pytest.mark.parametrize("spec", [machine(cpus=1), machine(gpus=2)], ids=["one", "gpus"])
@pytest.mark.parametrize("builder", [AllReduce(), *LOSSY], ids=str)
def test_nothing_is_shared_by_one_replica_or_by_gpus_whatever_is_asked(builder, spec):
    strategy = compiled(dense_item(), builder, spec)
    assert all(memories(strategy, asked) == tuple(range(len(strategy.replicas))) for asked in (None, True, False))


def test_the_replicas_of_each_machine_share_its_memory():
    strategy = compiled(dense_item(), AllReduce(), machines(2, 1))
    assert [memories(strategy, asked) for asked in (None, True, False)] == [(0, 0, 2), (0, 0, 2), (0, 1, 2)]
    for lossy in LOSSY:
        compressed = compiled(dense_item(), lossy, machines(2, 1))
        assert memories(compressed, None) == memories(compressed, True) == (0, 1, 2)


@pytest.mark.parametrize("builder", [AllReduce(), PS(), Parallax()], ids=str)
def test_a_machine_has_one_copy_of_a_weight_and_one_update(builder):
    item, counts = table_item(), {}
    for shared in (None, False):
        nodes = build(item, placed_on(item, builder, 2, 1, share_memory=shared)).graph_def.node
        handles = {node.name: node.attr["shared_name"].s.decode() for node in nodes if node.op == "VarHandleOp"}
        writes = [node for node in nodes if node.op in ("AssignVariableOp", "AssignSubVariableOp")]
        counts[shared] = sum(handles[node.input[0]].startswith("scale@") for node in writes)
        devices = {node.device for node in nodes if node.name == "variable/scale.replica1"}
        assert bool(devices) == (shared is False)
    assert counts[False] - counts[None] == 1
