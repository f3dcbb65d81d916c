"""AfterUpdate: run the nodes of compute that need reduced gradients, such as a running mean of their norm.

In: the values that the update hands back, `draft.returned`. Out: copies of these nodes on every active replica, which
read and write the replica's own variables. For a step that tracks a norm::

    replica0/track = AssignVariableOp(replica0/norm_mean, update/memory/norm, ^barrier/0)
"""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.replicator import copy_node


@dataclass(frozen=True)
class AfterUpdate(Kernel):
    """Copies each node that waits for reduced gradients and has an effect, once for every active replica."""

    needs = ("returned", "barriers")

    def apply(self, draft: Draft) -> None:
        """Add the copies; their writes wait until all operations that can fail have run."""
        step = draft.step
        effects = draft.after_update.intersection([*step.touches, *step.item.targets])
        for replica in draft.active_replicas:
            for name in step.in_order(step.cone(effects) & draft.after_update):
                copy = copy_node(draft, replica, name)
                if name in effects:
                    draft.editor.control(copy.name, draft.barriers[step.occurrences[-1]])
