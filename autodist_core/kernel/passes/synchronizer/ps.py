"""PSSynchronizer: reduce the gradients of variables with one owner, and bring the new values to the mirrors.

In: each replica's own gradients, `draft.local`. Out: the reduced gradients of each owner, `draft.reduced`, and one read
of each new value with one write for each mirror. For one variable on a server and two replicas::

    reduced/server/0/kernel = AddN(replica0/gradient, replica1/gradient)
    pull/0/kernel           = ReadVariableOp(kernel@server)
    pull/0/kernel.replica0  = AssignVariableOp(kernel@replica0, pull/0/kernel)
    pull/0/kernel.replica1  = AssignVariableOp(kernel@replica1, pull/0/kernel)

Over several machines, small gradients travel together, and so do small new values (`packing.py`).

The owner is a reduction destination, or the memory that the replicas of one process share. Gradients are added in
replica order, so results repeat. Rows of a sparse gradient are put one behind the other, and are never summed by index.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.synchronizer.reduction import at_host, reduce_all
from autodist_core.kernel.passes.synchronizer.shard_factors import multiplied, shared
from autodist_core.kernel.placement.placement import Copy, Owner, Replica
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
        apart = shared(draft)
        for owner in _servers(draft):
            mine = [each for each in draft.step.item.gradients if each.variable in owner.variables]
            for gradient in mine:
                if gradient.key in draft.products.travelling:
                    draft.reduced[*gradient.key, owner.name] = multiplied(draft, gradient, owner, apart)
            reduce_all(draft, mine, owner)
        for occurrence in draft.step.occurrences if self.mirrors else ():
            # This time is right after the update, and before the nodes that follow the update.
            order = 2 * draft.step.last_of_update(occurrence) + 1
            follow(draft, draft.placement.replicas, f"pull/{occurrence}", order, draft.step.written_in(occurrence))


def follow(draft: Draft, replicas: Sequence[Replica], label: str, order: int, changed: Set[str] | None = None) -> None:
    """Bring the servers' values to the replicas' mirrors: one read of each value, one write of each mirror.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> follow(draft, draft.active_replicas, "pull", order=0)
    >>> draft.targets
    ['pull/kernel/kernel.replica0', 'pull/kernel/kernel.replica1']
    """
    assembled = [
        variable for variable in sorted(draft.placement.assembled & set(draft.step.variables))
        if changed is None or any(part.name in changed for part in draft.placement.parts[variable])
    ]
    parts = {part.name for variable in assembled for part in draft.placement.parts[variable]}
    values = _Values(draft, label, order)
    for owner in _servers(draft):
        mirrored = sorted(
            variable for variable in owner.variables & draft.placement.mirrored
            if (changed is None or variable in changed) and _mirrors(draft, owner, variable, replicas)
        )
        values.send(owner, [*mirrored, *sorted(owner.variables & parts)], replicas)
        for variable in mirrored:
            for mirror, replica in _mirrors(draft, owner, variable, replicas).items():
                name = f"{label}/{naming.safe(variable)}/{naming.safe(mirror.name)}"
                draft.write(name, variable, mirror, values.on(owner, variable, replica), order)
    for variable in assembled:
        _assemble(draft, variable, values, replicas)


def _servers(draft: Draft) -> list[Owner]:
    return [owner for owner in draft.placement.owners if owner.replica is None]


def _mirrors(draft: Draft, owner: Owner, variable: str, replicas: Sequence[Replica]) -> dict[Copy, Replica]:
    """Return the mirrors of a variable that an owner has, each with a replica that computes on it."""
    found = {draft.placement.mirror(variable, replica): replica for replica in replicas}
    found.pop(draft.placement.owned_copy(variable, owner), None)
    return found


def _assemble(draft: Draft, variable: str, values: _Values, replicas: Sequence[Replica]) -> None:
    """Write the variable, put together from its shards, in every replica's memory."""
    parts = draft.placement.parts[variable]
    for replica in dict.fromkeys(draft.placement.holder(replica) for replica in replicas):
        there = [values.on(draft.placement.updater(part.name, replica), part.name, replica) for part in parts]
        name = f"{values.label}/{naming.safe(variable)}/{replica.prefix}"
        joined = draft.join(f"{name}/whole", there, draft.spec(variable).dtype, replica.device, parts[0].axis)
        draft.write(name, variable, draft.placement.mirror(variable, replica), joined, values.order)


class _Values:
    """The owners' new values on the replicas' machines. Each crosses the network once, the small ones together."""

    def __init__(self, draft: Draft, label: str, order: int) -> None:
        self.label, self.order = label, order
        self._draft = draft
        self._bundle_of: dict[tuple[str, str], list[str]] = {}

    def send(self, owner: Owner, variables: Sequence[str], replicas: Sequence[Replica]) -> None:
        """Let small variables of an owner travel together, if replicas are on other machines."""
        if packing.apart([owner.device, *(replica.device for replica in replicas)]):
            for bundle in packing.bundles(variables, self._draft.spec):
                self._bundle_of |= {(owner.name, variable): bundle for variable in bundle}

    def on(self, owner: Owner, variable: str, replica: Replica) -> str:
        """Return the value that an owner has of a variable, on a replica's machine."""
        draft, dtype = self._draft, self._draft.spec(variable).dtype
        bundle = self._bundle_of.get((owner.name, variable), [variable])
        if len(bundle) == 1:
            return at_host(draft, self._read(owner, variable), dtype, replica)
        vector = f"{self.label}/packed/{owner.name}/{naming.safe(bundle[0])}"
        if vector not in draft.editor:
            packing.packed(draft, vector, [self._read(owner, each) for each in bundle], dtype, owner.device)
        first = next(other for other in draft.placement.replicas if other.host == replica.host)
        there = f"{vector}/{first.prefix}"
        if there not in draft.editor:
            shapes = [draft.step.variables[each].shape for each in bundle]
            packing.unpacked(draft, there, at_host(draft, vector, dtype, first), shapes, dtype, first.host)
        return f"{there}/{bundle.index(variable)}"

    def _read(self, owner: Owner, variable: str) -> str:
        """Return the read of an owner's value."""
        draft, copy = self._draft, self._draft.placement.owned_copy(variable, owner)
        name = f"{self.label}/{naming.safe(variable if owner.replica is None else copy.name)}"
        return name if name in draft.editor else draft.read(name, variable, copy, self.order)
