"""What can be planned and not yet trained is refused as such, with the name of every variable."""

from __future__ import annotations

import pytest

from autodist_core.errors import NotYetError
from autodist_core.strategy import (
    PS,
    AllReduce,
    Parallax,
    PartitionedAR,
    PartitionedPS,
    PSLoadBalancing,
    RandomAxisPartitionAR,
    UnevenPartitionedPS,
)
from tests.kernel.graphs import dense_item, machine, placed, table_item

REMEDY = "Use synchronous updates, as all builders do by default."


def _refusal(item, builder, **options) -> str:
    with pytest.raises(NotYetError) as failure:
        placed(item, builder, **options)
    return str(failure.value)


@pytest.mark.parametrize("share_memory", [False, True])
@pytest.mark.parametrize(
    "builder, expected",
    [
        (PS(sync=False), "w: sync=False; b: sync=False"),
        (PS(staleness=2), "w: staleness=2; b: staleness=2"),
        (PartitionedPS(staleness=1), "w: staleness=1; b: staleness=1"),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_are_not_carried_out(builder, expected: str, share_memory: bool):
    found = _refusal(dense_item(), builder, share_memory=share_memory)
    assert found == f"this strategy can be planned but not yet trained: {expected}. {REMEDY}"


def test_the_message_names_six_and_counts_the_rest():
    item = dense_item(**{f"s{index}": "float64" for index in range(6)})
    found = _refusal(item, PS(sync=False))
    assert found.count("sync=False") == 6
    assert "w: sync=False; b: sync=False; s0: sync=False" in found and "; and 2 more. " in found


def test_only_the_rows_of_a_mixed_strategy_are_named():
    assert "scale" not in _refusal(table_item(), Parallax(sync=False))
    assert "table: sync=False" in _refusal(table_item(), Parallax(sync=False))


@pytest.mark.parametrize("builder", [
    AllReduce(), PS(), PSLoadBalancing(local_proxy_variable=True), Parallax(), PartitionedPS(), UnevenPartitionedPS(),
    PartitionedAR(), RandomAxisPartitionAR(seed=1),
], ids=str)  # fmt: skip
def test_defaults_are_carried_out(builder):
    assert len(placed(dense_item(), builder, machine(cpus=2)).replicas) == 2
