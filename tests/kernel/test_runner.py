"""Every kernel runs by itself on a draft, says what it changed, and is checked; `explain` knows all nodes it makes."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from autodist_core.capture.example import example_step
from autodist_core.errors import CaptureError, KernelError
from autodist_core.kernel import PARTS, PIPELINE, Draft, Kernel, Part, build, part_of, run
from autodist_core.kernel.example import example_placement
from autodist_core.strategy import PS, AllReduce, PartitionedPS, PSLoadBalancing, Sharded
from tests.kernel.graphs import dense_item, draft_of, placed

REPLICATOR, ALL_REDUCE, SERVERS, UPDATE, OUTPUTS, ORDER = (
    next(kernel for kernel in PIPELINE if kernel.name == name)
    for name in ("Replicator", "AllReduceSynchronizer", "PSSynchronizer", "Update", "Outputs", "Order")
)


def test_the_pipeline_is_in_the_order_of_the_flow():
    first = "Replicator AllReduceSynchronizer PSSynchronizer Barriers Update StateCombiner Outputs Order"
    last = "GradientsInTurn NumbersTogether LookupsTogether WeightsTogether Compile"
    assert [kernel.name for kernel in PIPELINE] == f"{first} {last}".split()
    assert tuple(type(kernel)() for kernel in PIPELINE) == PIPELINE, "kernels are values"


def test_a_kernel_changes_neither_the_item_nor_another_draft():
    item, before = dense_item(), dense_item().graph_def
    first, second = draft_of(item, AllReduce()), draft_of(item, AllReduce())
    run(first, PIPELINE)
    assert len(first.editor.histogram()) > 5 and second.editor.histogram() == {}
    assert item.graph_def.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class Breaks(Kernel):
    """Leaves a node that reads what is not there."""

    def apply(self, draft: Draft) -> None:
        draft.editor.add("NoOp", "broken", ["^absent"])
        draft.editor.add("NoOp", "broken")


@dataclass(frozen=True)
class Fails(Kernel):
    """Has a defect."""

    def apply(self, draft: Draft) -> None:
        {}["what"]


def test_what_the_editor_refuses_is_told_with_the_kernel():
    with pytest.raises(KernelError, match="two nodes are called 'broken'") as failure:
        run(draft_of(dense_item(), AllReduce()), [REPLICATOR, Breaks(), ORDER])
    assert failure.value.__notes__ == ["while running kernel Breaks (already run: Replicator)"]


def test_a_defect_of_a_kernel_is_told_with_what_had_run():
    for kernels, run_before in (([], "none"), ([REPLICATOR, SERVERS], "Replicator, PSSynchronizer")):
        with pytest.raises(KernelError) as failure:
            run(draft_of(dense_item(), PS()), [*kernels, Fails()])
        assert str(failure.value) == f"kernel Fails failed: KeyError('what') (already run: {run_before})."


def test_a_kernel_without_what_it_builds_on_fails_by_name():
    with pytest.raises(KernelError, match=r"AllReduceSynchronizer needs draft\.local, which no earlier"):
        run(draft_of(dense_item(), AllReduce()), [ALL_REDUCE])


def test_a_draft_is_refused_before_any_kernel_runs():
    item = dense_item()
    parts = replace(item, variables=tuple(replace(variable, aggregation="sum") for variable in item.variables))
    with pytest.raises(CaptureError, match="gradients are computed from 'w', read at"):
        draft_of(parts, AllReduce())


def test_a_placement_prints():
    item = dense_item()
    assert str(placed(item, PSLoadBalancing())).splitlines() == [
        "placement over 2 replicas",
        "  replica0 = localhost:CPU:0 on /device:CPU:0",
        "  replica1 = localhost:CPU:1 on /device:CPU:1",
        "  owner replica0 on /device:CPU:0: 0 variables",
        "  owner replica1 on /device:CPU:1: 0 variables",
        "  owner server_localhost_CPU_0 on /device:CPU:0: 1 variable",
        "  owner server_localhost_CPU_1 on /device:CPU:1: 1 variable",
    ]
    assert str(placed(item, PS(), share_memory=True)).splitlines()[3:] == [
        "  owner memory on /device:CPU:0: 2 variables"
    ]
    assert str(placed(item, AllReduce())).splitlines()[3:] == [
        "  owner replica0 on /device:CPU:0: 2 variables",
        "  owner replica1 on /device:CPU:1: 2 variables",
    ]


def test_kernels_in_the_wrong_order_are_refused_before_any_runs():
    draft = draft_of(dense_item(), AllReduce())
    with pytest.raises(KernelError) as failure:
        run(draft, [ALL_REDUCE, REPLICATOR, OUTPUTS, UPDATE])
    assert str(failure.value) == (
        "kernels in the wrong order: AllReduceSynchronizer needs draft.local, which no earlier kernel provides; "
        "AllReduceSynchronizer reads draft.local, which the later Replicator provides; "
        "Outputs reads draft.returned, which the later Update provides; "
        "Update needs draft.barriers, which no earlier kernel provides."
    )
    assert draft.editor.histogram() == {}


@dataclass(frozen=True)
class Uses(Kernel):
    """Uses fields of the draft as a test says."""

    use: Callable[[Draft], object]
    needs: ClassVar = ("compute",)
    provides: ClassVar = ("barriers",)

    def apply(self, draft: Draft) -> None:
        self.use(draft)


@pytest.mark.parametrize(
    "use, refused",
    [
        (lambda draft: draft.local, "does not declare how it uses draft.local"),
        (lambda draft: draft.outputs.append("loss"), "does not declare how it uses draft.outputs"),
        (lambda draft: setattr(draft, "compute", set()), "does not declare how it uses draft.compute"),
        (lambda draft: setattr(draft, "editor", None), "does not declare how it uses draft.editor"),
        (lambda draft: draft.compute.add("loss"), "'frozenset' object has no attribute 'add'"),
        (lambda draft: draft.barriers.update({0: "barrier"}), None),
        (lambda draft: draft.targets.append(min(draft.compute)), None),
    ],
    ids=["reads", "fills", "replaces what it needs", "replaces what is given", "changes what it needs", "", "targets"],
)
def test_a_kernel_sees_the_fields_that_it_declares(use, refused):
    draft = draft_of(dense_item(), PS())
    with pytest.raises((KernelError, AttributeError), match=refused) if refused else nullcontext():
        run(draft, [REPLICATOR, Uses(use)])
    assert draft.compute and not draft.outputs


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
