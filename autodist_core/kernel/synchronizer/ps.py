"""Reduce the gradients of variables that one owner updates for everybody, and bring the new values to the mirrors.

The owner is a reduction destination, or the memory that the replicas of one process share. Gradients are added in
replica order, so results repeat; rows of a sparse gradient are put one behind the other and never summed by index.
"""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.kernel import editor
from autodist_core.kernel.kernel import Draft, Kernel
from autodist_core.kernel.placement import Owner


@dataclass(frozen=True)
class PSSynchronizer(Kernel):
    """Synchronous parameter servers: one reduction and one update per variable and occurrence."""

    def apply(self, draft: Draft) -> None:
        """Reduce on each serving owner, and let the replicas' mirrors follow after each update."""
        for owner in draft.placement.owners:
            if owner.replica is None:
                for gradient in draft.captured.item.gradients:
                    if gradient.variable in owner.variables:
                        draft.reduced_for(gradient, owner)
                for variable in sorted(owner.variables & draft.placement.mirrored):
                    for occurrence in draft.captured.updates_of(variable):
                        _pull(draft, owner, variable, occurrence)
        for variable in sorted(draft.placement.assembled & set(draft.captured.variables)):
            parts = tuple(part.name for part in draft.placement.parts[variable])
            for occurrence in sorted({found for part in parts for found in draft.captured.updates_of(part)}):
                _assemble(draft, variable, parts, occurrence)


def _pull(draft: Draft, owner: Owner, variable: str, occurrence: int) -> None:
    """One read of the new value, one write of every mirror, right after the update and before what follows it."""
    held = draft.placement.held(variable, owner)
    mirrors = [draft.placement.mirror(variable, replica) for replica in draft.placement.replicas]
    mirrors = [mirror for mirror in dict.fromkeys(mirrors) if mirror != held]
    if not mirrors:
        return
    order = 2 * draft.captured.last_of_update(occurrence) + 1
    name = f"pull/{occurrence}/{editor.safe(variable)}"
    value = draft.read(name, variable, held, order)
    for mirror in mirrors:
        draft.write(f"{name}/{editor.safe(mirror.name)}", variable, mirror, value, order)


def _assemble(draft: Draft, variable: str, parts: tuple[str, ...], occurrence: int) -> None:
    """The shards' new values, read once each, are one variable again on every replica."""
    order = 2 * draft.captured.last_of_update(occurrence) + 1
    dtype, axis = draft.spec(variable).dtype, draft.captured.variables[parts[0]].axis
    for replica in draft.placement.replicas:
        values = []
        for part in parts:
            owner = draft.placement.updater(part, replica)
            held = draft.placement.held(part, owner)
            name = f"pull/{occurrence}/{editor.safe(held.name)}"
            values.append(name if name in draft.editor else draft.read(name, part, held, order))
        name = f"pull/{occurrence}/{editor.safe(variable)}/{replica.prefix}"
        whole = draft.join(f"{name}/whole", values, dtype, replica.device, axis)
        draft.write(name, variable, draft.placement.mirror(variable, replica), whole, order)
