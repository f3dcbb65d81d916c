"""PSSynchronizer: reduce the gradients of variables with one owner, and bring the new values to the mirrors.

In: each replica's own gradients, `draft.local`. Out: the reduced gradients of each owner, `draft.reduced`, and one read
of each new value with one write for each mirror. For one variable on a server and two replicas::

    reduced/server/0/kernel = AddN(replica0/gradient, replica1/gradient)
    pull/0/kernel           = ReadVariableOp(kernel@server)
    pull/0/kernel.replica0  = AssignVariableOp(kernel@replica0, pull/0/kernel)
    pull/0/kernel.replica1  = AssignVariableOp(kernel@replica1, pull/0/kernel)

The owner is a reduction destination, or the memory that the replicas of one process share. Gradients are added in
replica order, so results repeat. Rows of a sparse gradient are put one behind the other, and are never summed by index.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.synchronizer.reduction import at_host, reduced_for
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.step import naming


@dataclass(frozen=True)
class PSSynchronizer(Kernel):
    """Adds one reduction for each variable with one owner and each occurrence.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "PSSynchronizer", "AddN", "AssignVariableOp")
    'AddN: 0 -> 1, AssignVariableOp: 0 -> 2'
    """

    needs = ("local",)
    provides = ("reduced",)

    mirrors: bool = True
    """Whether the mirrors get the new values after each update."""

    def apply(self, draft: Draft) -> None:
        """Reduce the gradients on each server, and bring the new values to the replicas' mirrors."""
        for owner in _servers(draft):
            for gradient in draft.step.item.gradients:
                if gradient.variable in owner.variables:
                    reduced_for(draft, gradient, owner)
        for occurrence in draft.step.occurrences if self.mirrors else ():
            # This time is right after the update, and before the nodes that follow the update.
            order = 2 * draft.step.last_of_update(occurrence) + 1
            changed = draft.step.written_in(occurrence)
            follow(draft, draft.placement.replicas, f"pull/{occurrence}", order, changed)


def follow(
    draft: Draft, replicas: Sequence[Replica], label: str, order: int, changed: Set[str] | None = None
) -> None:
    """Bring the servers' values to the replicas' mirrors: one read of each value, one write of each mirror.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> follow(draft, draft.active_replicas, "pull", order=0)
    >>> draft.targets
    ['pull/kernel/kernel.replica0', 'pull/kernel/kernel.replica1']
    """
    for owner in _servers(draft):
        for variable in sorted(owner.variables & draft.placement.mirrored):
            if changed is None or variable in changed:
                _pull(draft, owner, variable, replicas, label, order)
    for variable in sorted(draft.placement.assembled & set(draft.step.variables)):
        parts = tuple(part.name for part in draft.placement.parts[variable])
        if changed is None or changed & set(parts):
            _assemble(draft, variable, parts, replicas, label, order)


def _servers(draft: Draft) -> list[Owner]:
    return [owner for owner in draft.placement.owners if owner.replica is None]


def _pull(
    draft: Draft, owner: Owner, variable: str, replicas: Sequence[Replica], label: str, order: int
) -> None:
    owned = draft.placement.owned_copy(variable, owner)
    mirrors = {draft.placement.mirror(variable, replica): replica for replica in replicas}
    mirrors.pop(owned, None)
    if not mirrors:
        return
    name, dtype = f"{label}/{naming.safe(variable)}", draft.spec(variable).dtype
    value = draft.read(name, variable, owned, order)
    for mirror, replica in mirrors.items():
        there = at_host(draft, value, dtype, replica)
        draft.write(f"{name}/{naming.safe(mirror.name)}", variable, mirror, there, order)


def _assemble(
    draft: Draft, variable: str, parts: tuple[str, ...], replicas: Sequence[Replica], label: str, order: int
) -> None:
    """Read each shard's value once, and write the variable put together in every replica's memory."""
    dtype, axis = draft.spec(variable).dtype, draft.step.variables[parts[0]].axis
    for replica in dict.fromkeys(draft.placement.holder(replica) for replica in replicas):
        values = []
        for part in parts:
            owned = draft.placement.owned_copy(part, draft.placement.updater(part, replica))
            name = f"{label}/{naming.safe(owned.name)}"
            value = name if name in draft.editor else draft.read(name, part, owned, order)
            values.append(at_host(draft, value, dtype, replica))
        name = f"{label}/{naming.safe(variable)}/{replica.prefix}"
        joined = draft.join(f"{name}/whole", values, dtype, replica.device, axis)
        draft.write(name, variable, draft.placement.mirror(variable, replica), joined, order)
