"""Which strategies let the replicas of one process share their weights."""

from __future__ import annotations

import pytest

from autodist_core import ResourceSpec
from autodist_core.errors import StrategyError
from autodist_core.kernel.sharing import shares_memory
from autodist_core.strategy import PS, AllReduce, Parallax
from tests.kernel.graphs import compiled, dense_item, machine, table_item

EXACT = [AllReduce(), AllReduce(bucket_bytes=8), PS(), Parallax(), PS(local_proxy_variable=True)]
APART = [
    (AllReduce(compressor="HorovodCompressor"), "table", "compressor=HorovodCompressor"),
    (AllReduce(compressor="PowerSGDCompressor"), "table", "compressor=PowerSGDCompressor"),
    (Parallax(compressor="HorovodCompressorEF"), "scale", "compressor=HorovodCompressorEF"),
    (PS(sync=False), "table", "sync=False"),
    (Parallax(staleness=3), "table", "staleness=3"),
]


@pytest.mark.parametrize("builder", EXACT, ids=str)
def test_what_is_exact_shares_unless_told_otherwise(builder):
    strategy = compiled(dense_item(), builder, machine(cpus=2))
    assert [shares_memory(strategy, asked) for asked in (None, True, False)] == [True, True, False]


@pytest.mark.parametrize("builder, name, reason", APART, ids=str)
def test_what_needs_a_copy_for_each_replica_does_not_share(builder, name: str, reason: str):
    strategy = compiled(table_item(), builder, machine(cpus=2))
    assert [shares_memory(strategy, asked) for asked in (None, False)] == [False, False]
    with pytest.raises(StrategyError) as failure:
        shares_memory(strategy, True)
    assert str(failure.value) == (
        f"share_memory=True: variable '{name}' has {reason}, for which every replica needs its own copy of the "
        "weights. Leave share_memory out, or take the option out of the strategy."
    )


TWO_NODES = ResourceSpec({
    "nodes": [{"address": "10.0.0.1", "chief": True, "cpus": [0, 1]}, {"address": "10.0.0.2", "cpus": [0]}],
    "ssh": {"username": "ubuntu"},
})  # fmt: skip


@pytest.mark.parametrize("spec", [machine(cpus=1), machine(gpus=2), TWO_NODES], ids=["one", "gpus", "nodes"])
@pytest.mark.parametrize("builder", [AllReduce(), AllReduce(compressor="HorovodCompressor")], ids=str)
def test_nothing_is_shared_by_one_replica_by_gpus_or_by_machines_whatever_is_asked(builder, spec):
    strategy = compiled(dense_item(), builder, spec)
    assert not any(shares_memory(strategy, asked) for asked in (None, True, False))
