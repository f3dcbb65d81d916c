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

REMEDY = "Use AllReduce(), PS(), PSLoadBalancing() or Parallax() with their defaults."


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
        (PSLoadBalancing(local_proxy_variable=True), "w: local_replication=True; b: local_replication=True"),
        (PS(local_proxy_variable=True, staleness=1),
         "w: staleness=1; w: local_replication=True; b: staleness=1; b: local_replication=True"),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_are_not_carried_out(builder, expected: str, share_memory: bool):
    found = _refusal(dense_item(), builder, share_memory=share_memory)
    assert found == f"this strategy can be planned but not yet trained: {expected}. {REMEDY}"


@pytest.mark.parametrize("share_memory", [False, True])
@pytest.mark.parametrize(
    "builder, expected",
    [
        (PartitionedPS(), "w: splitting a variable (axis 0, 3 shards); b: splitting a variable (axis 0, 2 shards)"),
        (UnevenPartitionedPS(), "w: splitting a variable (axis 0, 2 shards)"),
        (PartitionedAR(), "w: splitting a variable (axis 0, 3 shards); b: splitting a variable (axis 0, 2 shards)"),
        (RandomAxisPartitionAR(seed=1), "b: splitting a variable (axis 0, 2 shards)"),
    ],
    ids=str,
)
def test_split_variables_are_never_silently_whole(builder, expected: str, share_memory: bool):
    item = dense_item()
    found = _refusal(item, builder, share_memory=share_memory)
    assert expected in found and found.endswith(REMEDY)


def test_the_message_names_six_and_counts_the_rest():
    item = dense_item(**{f"s{index}": "float64" for index in range(6)})
    found = _refusal(item, PS(sync=False))
    assert found.count("sync=False") == 6
    assert "w: sync=False; b: sync=False; s0: sync=False" in found and "; and 2 more. " in found


def test_only_the_rows_of_a_mixed_strategy_are_named():
    assert "scale" not in _refusal(table_item(), Parallax(sync=False))
    assert "table: sync=False" in _refusal(table_item(), Parallax(sync=False))


@pytest.mark.parametrize("builder", [AllReduce(), PS(), PSLoadBalancing(), Parallax()], ids=str)
def test_defaults_are_carried_out(builder):
    assert len(placed(dense_item(), builder, machine(cpus=2)).replicas) == 2
