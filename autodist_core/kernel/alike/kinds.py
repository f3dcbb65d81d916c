"""Find the replicas of a placement that do the same, and choose two of each kind that stand for it.

In: a placement, and how many examples each replica has. Out: the kinds. For 8 machines with one replica each, and 20
examples::

    replicas 1, 2, 3       3 examples    two replicas are built, and stand for all three
    replicas 4, 5, 6, 7    2 examples    two replicas are built, and stand for all four

The first replica is of no kind: its machine has the inputs of the session, sums and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autodist_core.kernel.placement.placement import Placement

STANDING = 2
"""How many replicas of a kind are built: what is different between them tells how their nodes depend on the replica."""


@dataclass(frozen=True)
class Kind:
    """Replicas that do the same. `first` is the index of the first one that is built, among those that are built.

    >>> Kind(1, (1, 2, 3, 4), examples=8).built
    (1, 2)
    """

    first: int
    members: tuple[int, ...]
    examples: int

    @property
    def built(self) -> tuple[int, ...]:
        """The indices of those that are built."""
        return tuple(range(self.first, self.first + STANDING))


def kinds_of(placement: Placement, sizes: Sequence[int] = ()) -> tuple[Kind, ...]:
    """Return the kinds of all replicas but the first; none if it is not worth it, or if replicas are of one machine.

    `sizes` is the number of examples of each replica, if the graph is for these sizes only.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placement import inference
    >>> addresses = tuple(f"10.0.0.{index}" for index in range(1, 9))
    >>> placement = inference(tuple(f"{address}:CPU:0" for address in addresses), Tasks("run", addresses))
    >>> kinds_of(placement)
    (Kind(first=1, members=(1, 2, 3, 4, 5, 6, 7), examples=0),)
    >>> [kind.members for kind in kinds_of(placement, (3, 3, 3, 3, 2, 2, 2, 2))]
    [(1, 2, 3), (4, 5, 6, 7)]
    """
    if not placement.one_per_machine or placement.loose is not None or not _in_order(placement):
        return ()
    found: list[Kind] = []
    others = [(replica.index, sizes[replica.index] if sizes else 0) for replica in placement.replicas[1:]]
    for size, group in groupby(others, lambda other: other[1]):
        members = tuple(index for index, _ in group)
        found.append(Kind(1 + STANDING * len(found), members, size))
    worth = 1 + STANDING * len(found) < len(placement.replicas)
    return tuple(found) if worth and all(len(kind.members) >= STANDING for kind in found) else ()


def standing(placement: Placement, kinds: Sequence[Kind]) -> Placement:
    """Return the placement of the replicas that are built.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placement import inference
    >>> addresses = tuple(f"10.0.0.{index}" for index in range(1, 9))
    >>> placement = inference(tuple(f"{address}:CPU:0" for address in addresses), Tasks("run", addresses))
    >>> [replica.name for replica in standing(placement, kinds_of(placement)).replicas]
    ['10.0.0.1:CPU:0', '10.0.0.2:CPU:0', '10.0.0.3:CPU:0']
    """
    count = 1 + STANDING * len(kinds)
    owners = tuple(owner for owner in placement.owners if owner.replica is None or owner.replica < count)
    return replace(
        placement, replicas=placement.replicas[:count], owners=owners, memories=placement.memories[:count]
    )


def _in_order(placement: Placement) -> bool:
    """Whether the number of each replica is that of its task, and all replicas have devices of one kind."""
    first, tasks = placement.replicas[0], placement.tasks
    return all(
        replica.device == first.device.replace("/task:0/", f"/task:{replica.index}/") for replica in placement.replicas
    ) and len(tasks.addresses) >= len(placement.replicas)
