"""The devices that a plan shows for a variable are those on which the kernels place copies of it."""

import pytest

from autodist_core import ResourceSpec
from autodist_core.kernel import Tasks, arrange, place
from autodist_core.plan import plan_table
from autodist_core.strategy import PS, AllReduce, Parallax, PSLoadBalancing
from autodist_core.strategy.compiler import StrategyCompiler
from tests.kernel.graphs import dense_item, table_item

ADDRESSES = ("10.0.0.1", "10.0.0.2")


def _spec(**devices) -> ResourceSpec:
    nodes = [{"address": address, "chief": address == ADDRESSES[0], **devices} for address in ADDRESSES]
    return ResourceSpec({"nodes": nodes, "ssh": {"username": "ubuntu"}})


@pytest.mark.parametrize("share_memory", [None, False])
@pytest.mark.parametrize("devices", [{"cpus": [0, 1]}, {"cpus": [0], "gpus": [0, 1]}], ids=["CPUs", "GPUs"])
@pytest.mark.parametrize("builder", [PS(), PSLoadBalancing(), AllReduce(), Parallax()], ids=repr)
@pytest.mark.parametrize("make", [dense_item, table_item])
def test_a_plan_shows_the_devices_that_have_copies(make, builder, devices: dict, share_memory: bool | None):
    item, spec = make(), _spec(**devices)
    strategy, tasks = StrategyCompiler(item, spec).compile(builder.build(item, spec)), Tasks("run", ADDRESSES)
    arranged = arrange(item, strategy, share_memory)
    placement = place(item, strategy, share_memory, tasks)
    for row in plan_table(arranged.strategy, item, arranged.memories).rows:
        placed = {copy.device for copy in placement.copies(row.name)}
        assert {tasks.device(name) for name in row.devices} == placed, row.name
