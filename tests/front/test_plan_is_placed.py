"""What a plan prints is what the kernels place: one decision for both."""

import re
from contextlib import suppress

import keras
import pytest

from autodist_core import ResourceSpec
from autodist_core.errors import StrategyError
from autodist_core.kernel import Placement, arrange, place
from autodist_core.kernel.placement.devices import Tasks
from autodist_core.plan import plan_table
from autodist_core.reports.step_plan import planned
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import PS, AllReduce, PartitionedPS, PSLoadBalancing, StrategyBuilder
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.compiler import StrategyCompiler
from tests.support.graphs import captured
from tests.support.machines import machines
from tests.support.models import BY_NAME, ready
from tests.support.steps import OwnStep
from tests.support.strategies import BUILDERS, HAND_WRITTEN, HandWritten, serve, strategy_named
from tests.support.training import seeded

ONE = ResourceSpec.local(cpus=3)
TWO = machines(2, 1)
GPUS = ResourceSpec({"nodes": [{"address": "localhost", "gpus": [0, 1]}]})
GPUS_OF_TWO = machines(2, 2, kind="gpus", cpus=[0])
SPECS = {"one machine": ONE, "two machines": TWO, "gpus": GPUS, "gpus of two machines": GPUS_OF_TWO}
OTHERS = {
    "stale": lambda: PSLoadBalancing(staleness=2), "asynchronous": lambda: PartitionedPS(sync=False),
    "proxies": lambda: PS(local_proxy_variable=True),
}  # fmt: skip
MODELS = [("dense", "adam"), ("dense", "adafactor"), ("embedding", "sgd"), ("adversarial", "adam")]


def _builder(name: str):
    return OTHERS[name]() if name in OTHERS else strategy_named(name)


def _said_of(placement: Placement, name: str) -> str:
    """Where the kernels put a variable, in the words of a plan."""
    if placement.shares_memory:
        return "in shared memory"
    places = []
    for part in [part.name for part in placement.parts.get(name, ())] or [name]:
        owner = placement.owner(placement.owner_of[part])
        synchronizer = placement.plans[part].synchronizer
        assert (owner.replica is None) == str(synchronizer).startswith("ps(")
        places.append(str(synchronizer))
    return " + ".join(places)


def _printed(text: str, pieces: int) -> str:
    """Where a plan says that a variable is, one place for each piece."""
    text = re.sub(r"^split\(.*?\) ", "", text)
    if text.startswith("ps(") and " + " not in text:
        inside = text.removeprefix("ps(").removesuffix(")").split(", ")
        places = [part for part in inside if "=" not in part and ":" in part]
        options = [part for part in inside if part not in places]
        assert len(places) == pieces
        return " + ".join(f"ps({', '.join([place, *options])})" for place in places)
    return text


def _assert_printed_is_placed(
    item: GraphItem, spec: ResourceSpec, builder: StrategyBuilder, share_memory: bool | None,
) -> Placement:
    return _assert_strategy_is_placed(
        item, spec, StrategyCompiler(item, spec).compile(builder.build(item, spec)), share_memory
    )


def _assert_strategy_is_placed(
    item: GraphItem, spec: ResourceSpec, strategy: CompiledStrategy, share_memory: bool | None,
) -> Placement:
    addresses = tuple(node.address for node in spec.nodes)
    tasks = Tasks("run", addresses) if len(addresses) > 1 else Tasks()
    placement, arranged = place(item, strategy, share_memory, tasks), arrange(item, strategy, share_memory)
    plan = planned(item, strategy, share_memory, lambda _: (), "")
    rows = [re.split(r" : |  +", line.strip()) for line in plan.splitlines() if " : " in line]
    parts = {part.name for each in placement.parts.values() for part in each}
    assert {row[0] for row in rows} == placement.plans.keys() - parts
    for name, _, text, *_ in rows:
        pieces = len(placement.parts.get(name, ())) or 1
        assert _printed(text, pieces) == _said_of(placement, name), (name, text)
        assert (f"note: {name} stays whole" in plan) == (name in placement.partitioner.whole)
    table = plan_table(arranged.strategy, item, arranged.memories)
    for row in () if placement.shares_memory else (row for row in table.rows if row.name not in placement.parts):
        placed = {copy.device for copy in placement.copies(row.name)}
        assert {tasks.device(name) for name in row.devices} == placed, row.name
    copies = {placement.holder(replica).index for replica in placement.replicas}
    assert ("the replicas share one copy" in plan) == placement.shares_memory
    by_machine = not placement.shares_memory and len(copies) < len(placement.replicas)
    assert ("the replicas of a machine share one copy" in plan) == by_machine
    apart = "lets a replica compute on" in plan or "asynchronous updates" in plan
    assert apart == (placement.loose is not None)
    return placement


@pytest.mark.quick("two machines-embedding-sgd")
@pytest.mark.parametrize("name, optimizer", MODELS)
@pytest.mark.parametrize("machines", SPECS)
def test_what_is_printed_is_placed(machines: str, name: str, optimizer: str):
    reference = BY_NAME[name]
    model = ready(seeded(reference.build), **reference.compile_arguments(optimizer))
    item = captured(model, reference.data().x, reference.data().y).item
    spec = SPECS[machines]
    for builder in [*BUILDERS, *HAND_WRITTEN, *OTHERS]:
        with suppress(StrategyError):
            strategy = StrategyCompiler(item, spec).compile(_builder(builder).build(item, spec))
            for share_memory in (None, True, False):
                with suppress(StrategyError):
                    _assert_strategy_is_placed(item, spec, strategy, share_memory)
    _assert_printed_is_placed(item, spec, PSLoadBalancing(staleness=2), True)


class Shadowed(OwnStep):
    """Keeps a copy of its first kernel, which the optimizer writes and the step halves."""

    def __init__(self):
        super().__init__(name="shadowed")
        self.shadow = self.add_weight(shape=(5, 6), trainable=False, name="shadow")

    def train_step(self, data):
        self.shadow.assign(self.shadow * 0.5)
        return super().train_step(data)


class Follows(keras.optimizers.SGD):
    """Lets the copy follow."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        shadow = self.model().shadow
        if variable.shape == shadow.shape:
            shadow.assign(shadow + variable)


def test_a_plan_says_that_nothing_is_shared_where_each_replica_writes_a_slot():
    reference = BY_NAME["dense"]
    data, model = reference.data(), seeded(Shadowed)
    optimizer = Follows(0.1)
    optimizer.model = lambda: model
    model.compile(optimizer, jit_compile=False)
    placement = _assert_printed_is_placed(captured(model, data.x, data.y).item, TWO, AllReduce(), None)
    assert [placement.holder(replica).index for replica in placement.replicas] == [0, 1, 2]


class HalfAServers(HandWritten):
    """The first shard of each matrix on an asynchronous server, the other one reduced."""

    def decide(self, index, node, variable, servers):
        if len(variable.shape) != 2:
            serve(node, servers[0])
            node.PSSynchronizer.sync = False
            return
        node.partitioner = "2,1"
        for _ in range(2):
            node.part_config.add()
        node.part_config[0].PSSynchronizer.reduction_destination = servers[0]
        node.part_config[1].AllReduceSynchronizer.group = 0


def test_a_plan_says_that_replicas_drift_where_what_kept_them_stays_whole():
    reference = BY_NAME["dense"]
    data, model = reference.data(), ready(seeded(reference.build), **reference.compile_arguments("adafactor"))
    placement = _assert_printed_is_placed(captured(model, data.x, data.y).item, ONE, HalfAServers(), False)
    assert placement.loose is not None
