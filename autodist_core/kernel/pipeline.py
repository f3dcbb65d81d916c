"""From a captured step and a placement to the graph of all replicas: the kernels, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autodist_core.kernel.added_variables import Kept
from autodist_core.kernel.draft import Draft, copied
from autodist_core.kernel.kernel import Change, Kernel, run
from autodist_core.kernel.passes.after_update import AfterUpdate
from autodist_core.kernel.passes.barriers import Barriers
from autodist_core.kernel.passes.order import Order
from autodist_core.kernel.passes.outputs import Outputs
from autodist_core.kernel.passes.replicator import Replicator
from autodist_core.kernel.passes.residuals import Residuals
from autodist_core.kernel.passes.state_combiner import StateCombiner
from autodist_core.kernel.passes.synchronizer import AllReduceSynchronizer, PSSynchronizer
from autodist_core.kernel.passes.update import Update
from autodist_core.kernel.placement.placement import Placement
from autodist_core.step.graph_item import GraphItem

PIPELINE: tuple[Kernel, ...] = (
    Replicator(), AllReduceSynchronizer(), PSSynchronizer(), Barriers(), Residuals(), Update(), AfterUpdate(),
    StateCombiner(), Outputs(), Order(),
)


@dataclass(frozen=True)
class DistributedGraph:
    """One step for all replicas: what to feed, what to fetch, what to run.

    `feeds` names, for each replica, the placeholders of those captured inputs that are read at all, `inputs` says which
    these are. `counts` are the placeholders for how many examples each replica has, and all together; a graph for
    batches of one size has none.
    """

    graph_def: Any
    feeds: tuple[tuple[str, ...], ...]
    inputs: tuple[int, ...]
    counts: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[str, ...]
    initializers: tuple[str, ...]
    changes: tuple[Change, ...]
    kept: tuple[Kept, ...] = ()
    """Variables that are not the captured step's, and belong to the training's state all the same."""

    def __str__(self) -> str:
        return "\n".join(str(change) for change in self.changes)


def build(
    item: GraphItem, placement: Placement, active: int | Sequence[int] | None = None,
    kernels: Sequence[Kernel] = PIPELINE, sizes: Sequence[int] = (),
) -> DistributedGraph:
    """The graph of one step in which the first `active` replicas, or those with these indices, have examples.

    With `sizes`, the number of examples of each of them, it takes no others, and TensorFlow computes in advance what
    depends on shapes alone.
    """
    draft = Draft.of(placement.partitioner.apply(item), placement, active, sizes)
    changes = run(draft, kernels)
    counts = () if sizes else (*(draft.examples(replica) for replica in draft.busy), draft.total())
    used = tuple(
        index for index, tensor in enumerate(item.inputs) if copied(draft.busy[0], tensor.name) in draft.editor
    )
    return DistributedGraph(
        draft.editor.graph_def(),
        tuple(tuple(draft.fed(replica, item.inputs[index].name) for index in used) for replica in draft.busy),
        used,
        counts, tuple(draft.outputs), tuple(draft.steps), tuple(draft.initializers), changes,
        tuple(draft.kept),
    )
