"""What compute does with the whole batch's gradients beside training: a running mean of their norm, say.

It waits for the update to hand back what it needs. Like the rest of compute it runs on every replica that has examples,
on the replica's own copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.kernel.kernel import Draft, Kernel
from autodist_core.kernel.passes.barriers import barrier
from autodist_core.kernel.passes.replicator import copy_node


@dataclass(frozen=True)
class Late(Kernel):
    """One copy for every busy replica of what waits for gradients and has an effect."""

    def apply(self, draft: Draft) -> None:
        """Copy it; nothing is written before all that can fail has run."""
        captured = draft.captured
        effects = draft.late.intersection([*captured.touches, *captured.item.targets])
        for replica in draft.busy:
            for name in captured.in_order(captured.cone(effects) & draft.late):
                copy = copy_node(draft, replica, name)
                if name in effects:
                    draft.editor.control(copy.name, barrier(captured.occurrences[-1]))
