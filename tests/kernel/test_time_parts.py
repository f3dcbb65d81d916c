"""Every node that kernels make has a name by which `explain` knows its part of a step."""

import pytest

from autodist_core.capture.example import example_step
from autodist_core.kernel import PARTS, Part, build, part_of
from autodist_core.kernel.example import example_placement
from autodist_core.strategy import PS, AllReduce, PartitionedPS, Sharded

BUILDERS = {
    "servers": PS(), "collectives": AllReduce(), "split": PartitionedPS(),
    "gathered": Sharded("gathered", whole_bytes=0),
    "compressed": AllReduce(compressor="HorovodCompressorEF"),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILDERS)
def test_every_node_has_a_part_or_takes_no_time(name: str):
    nodes = build(example_step(), example_placement(BUILDERS[name])).graph_def.node
    words = {node.name.partition("/")[0].rstrip("0123456789") for node in nodes}
    assert words - PARTS.keys() == set()
    found = {part_of(node.name, node.op) for node in nodes}
    assert found == {Part.COMPUTE, Part.UPDATE, Part.EXCHANGE, None}
