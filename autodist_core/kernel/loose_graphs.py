"""Loose steps: the graphs of replicas that do not wait for each other.

In: a captured step, its placement, and one or more replicas. Out: a `DistributedGraph` for one part of the step. There
are five such graphs::

    follow     mirror = the server's value             for one replica
    compute    queue <- the replica's gradients        for one replica
    update     the update <- the queues' gradients     for the replicas of one step
    discard    (nothing) <- the queue's gradients      for one replica
    combine    one state of the replicas' metrics      for all replicas, when no step is under way

Each replica has a queue of its own. The update runs on the servers.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.barriers import Barriers
from autodist_core.kernel.passes.compile import Compile
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


class Send(Kernel):
    """Put each active replica's gradients into its queue, after all operations of its step that can fail.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS(staleness=2), before="Update")
    >>> Send().apply(draft)
    >>> list(draft.editor["send/replica1"].input)
    ['queue/replica1', 'weighted/replica1/0/kernel', '^barrier/0']
    """

    needs = ("local", "barriers")

    def apply(self, draft: Draft) -> None:
        """Add one enqueue for each active replica."""
        gradients = draft.step.item.gradients
        types = _types(draft)
        for replica in draft.active_replicas:
            rows = [draft.local[*gradient.key, replica.index] for gradient in gradients]
            parts = [name for row in rows for name in (row.values, row.indices) if name]
            inputs = [_queue(draft, replica), *parts, *(f"^{draft.barriers[o]}" for o in draft.step.occurrences)]
            draft.targets.append(draft.editor.add(
                "QueueEnqueueV2", f"send/{replica.prefix}", inputs, replica.host, Tcomponents=types, timeout_ms=-1
            ))


class Receive(Kernel):
    """Take each active replica's gradients of one step out of its queue; the update waits for all of them.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS(staleness=2))
    >>> Receive().apply(draft)
    >>> draft.local["kernel", 0, 1], list(draft.editor["barrier/0"].input)
    (Rows(values='receive/replica1', indices=''), ['^receive/replica0', '^receive/replica1'])
    """

    provides = ("local", "barriers")

    def apply(self, draft: Draft) -> None:
        """Add one dequeue for each active replica, and the barriers."""
        arrived = []
        for replica in draft.active_replicas:
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
                draft.local[*gradient.key, replica.index] = Rows(*names)
        for occurrence in draft.step.occurrences:
            host = draft.active_replicas[0].host
            draft.barriers[occurrence] = draft.editor.add("NoOp", f"barrier/{occurrence}", arrived, host)


class Follow(Kernel):
    """Bring the servers' values to the active replicas.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS(staleness=2))
    >>> Follow().apply(draft)
    >>> draft.targets
    ['follow/kernel/kernel.replica0', 'follow/kernel/kernel.replica1']
    """

    def apply(self, draft: Draft) -> None:
        """Add a read of each value and a write of each replica's copy."""
        follow(draft, draft.active_replicas, "follow", 0)


_KERNELS: Mapping[str, Sequence[Kernel]] = {
    "follow": (Follow(), Order()),
    "compute": (Replicator(), Barriers(), Send(), Outputs(), Order(), Compile()),
    "update": (Receive(), PSSynchronizer(mirrors=False), Update(), Order()),
    "discard": (Receive(), Order()),
    "combine": (StateCombiner(), Order()),
}


def loose_graph(what: str, item: GraphItem, placement: Placement, *replicas: int) -> DistributedGraph:
    """Return one of the five graphs for these replicas; without replicas, for all of them.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> item, placement = example_step(), example_placement(PS(staleness=2))
    >>> print(*loose_graph("compute", item, placement, 1).changes[1:-1], sep="; ")
    Barriers: NoOp: 0 -> 4; Send: FIFOQueueV2: 0 -> 1, QueueEnqueueV2: 0 -> 1; Outputs: no change; Order: NoOp: 4 -> 5
    >>> print(*loose_graph("discard", item, placement, 1).changes, sep="; ")
    Receive: FIFOQueueV2: 0 -> 1, NoOp: 0 -> 1, QueueDequeueV2: 0 -> 1; Order: NoOp: 1 -> 2
    """
    return build(item, placement, replicas or None, _KERNELS[what])


def _types(draft: Draft) -> list[tf.DType]:
    """Return the types of the tensors that one replica puts into its queue in one step."""
    return [dtype for gradient in draft.step.item.gradients for dtype in draft.types_of(gradient)]


def _queue(draft: Draft, replica: Replica) -> str:
    return draft.editor.once(
        "FIFOQueueV2", f"queue/{replica.prefix}", device=replica.host, component_types=_types(draft), capacity=-1,
        shared_name=f"gradients/{draft.step.digest}@{replica.prefix}",
    )
