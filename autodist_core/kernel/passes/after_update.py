"""AfterUpdate: what compute does with the whole batch's gradients besides training, such as a mean of their norm.

In: `draft.returned`, the values that the update hands back. Out: copies of these nodes on every replica that has
examples, on the replica's own variables. For a step that tracks a norm::

    replica0/track = AssignVariableOp(replica0/norm_mean, update/memory/norm, ^barrier/0)
"""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.replicator import copy_node


@dataclass(frozen=True)
class AfterUpdate(Kernel):
    """For every busy replica, a copy of each node that waits for reduced gradients and has an effect."""

    needs = ("returned", "barriers")

    def apply(self, draft: Draft) -> None:
        """Copy it; nothing is written before all that can fail has run."""
        step = draft.step
        effects = draft.after_update.intersection([*step.touches, *step.item.targets])
        for replica in draft.active_replicas:
            for name in step.in_order(step.cone(effects) & draft.after_update):
                copy = copy_node(draft, replica, name)
                if name in effects:
                    draft.editor.control(copy.name, draft.barriers[step.occurrences[-1]])
