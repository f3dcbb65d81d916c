"""Steps of replicas that do not wait for each other, in four graphs.

A replica **follows** (takes over the servers' current values) and **computes**, which leaves its gradients in a queue
of its own. An **update** takes one step's gradients out of the queues of the replicas it is for, and runs on the
servers. What replicas write on the side becomes one state again when all is still: they **combine**.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from autodist_core.kernel.draft import Draft, Rows, gradient_type, output_type_of_indices
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.barriers import Barriers
from autodist_core.kernel.passes.order import Order
from autodist_core.kernel.passes.outputs import Outputs
from autodist_core.kernel.passes.replicator import Replicator
from autodist_core.kernel.passes.state_combiner import StateCombiner
from autodist_core.kernel.passes.synchronizer import PSSynchronizer
from autodist_core.kernel.passes.synchronizer.ps import follow
from autodist_core.kernel.passes.update import Update
from autodist_core.kernel.pipeline import DistributedGraph, build
from autodist_core.kernel.placement.placement import Placement, Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import GraphItem


@dataclass(frozen=True)
class Send(Kernel):
    """Put the gradients of each busy replica into its queue, after everything of its step that can fail."""

    needs = ("local", "barriers")

    def apply(self, draft: Draft) -> None:
        """Add one enqueue for each replica."""
        gradients = draft.step.item.gradients
        types = _types(draft)
        for replica in draft.busy:
            rows = [draft.local[gradient.variable, gradient.occurrence, replica.index] for gradient in gradients]
            parts = [name for row in rows for name in (row.values, row.indices) if name]
            inputs = [_queue(draft, replica), *parts, *(f"^{draft.barriers[o]}" for o in draft.step.occurrences)]
            draft.targets.append(draft.editor.add(
                "QueueEnqueueV2", f"send/{replica.prefix}", inputs, replica.host, Tcomponents=types, timeout_ms=-1
            ))


@dataclass(frozen=True)
class Receive(Kernel):
    """Take each busy replica's gradients of one step out of its queue; the update waits for all of them."""

    provides = ("local", "barriers")

    def apply(self, draft: Draft) -> None:
        """Add one dequeue for each replica, and the barriers."""
        arrived = []
        for replica in draft.busy:
            name = draft.editor.add(
                "QueueDequeueV2", f"receive/{replica.prefix}", [_queue(draft, replica)], replica.host,
                component_types=_types(draft), timeout_ms=-1,
            )
            arrived.append(f"^{name}")
            draft.targets.append(name)
            position = 0
            for gradient in draft.step.item.gradients:
                names = [naming.tensor(name, position + offset) for offset in range(2 if gradient.indices else 1)]
                position += len(names)
                draft.local[gradient.variable, gradient.occurrence, replica.index] = Rows(*names)
        for occurrence in draft.step.occurrences:
            draft.barriers[occurrence] = draft.editor.add("NoOp", f"barrier/{occurrence}", arrived, draft.busy[0].host)


@dataclass(frozen=True)
class Follow(Kernel):
    """Bring the servers' values to the busy replicas."""

    def apply(self, draft: Draft) -> None:
        """Add a read of each value and a write of each replica's copy."""
        follow(draft, draft.busy, "follow", 0)


def computing(item: GraphItem, placement: Placement, replica: int) -> DistributedGraph:
    """What one replica computes of a step."""
    return build(item, placement, (replica,), (Replicator(), Barriers(), Send(), Outputs(), Order()))


def following(item: GraphItem, placement: Placement, replica: int) -> DistributedGraph:
    """How one replica takes over the servers' values."""
    return build(item, placement, (replica,), (Follow(), Order()))


def updating(item: GraphItem, placement: Placement, replicas: Sequence[int]) -> DistributedGraph:
    """The update of one step with the gradients of some replicas."""
    return build(item, placement, replicas, (Receive(), PSSynchronizer(mirrors=False), Update(), Order()))


def discarding(item: GraphItem, placement: Placement, replica: int) -> DistributedGraph:
    """Forget the gradients of one step of a replica."""
    return build(item, placement, (replica,), (Receive(), Order()))


def combining(item: GraphItem, placement: Placement) -> DistributedGraph:
    """How what the replicas wrote on the side becomes one state."""
    return build(item, placement, None, (StateCombiner(), Order()))


def _types(draft: Draft) -> list[tf.DType]:
    """The types of what one replica sends of one step."""
    found = []
    for gradient in draft.step.item.gradients:
        found.append(gradient_type(draft.step, gradient))
        if gradient.indices:
            found.append(output_type_of_indices(draft.step, gradient))
    return found


def _queue(draft: Draft, replica: Replica) -> str:
    name = f"queue/{replica.prefix}"
    if name not in draft.editor:
        draft.editor.add(
            "FIFOQueueV2", name, device=replica.host, component_types=_types(draft), capacity=-1,
            shared_name=f"gradients/{draft.step.digest}@{replica.prefix}",
        )
    return name
