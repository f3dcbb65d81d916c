"""Find the machines of a placement that do the same, and choose two of each kind that stand for it.

In: a placement, and how many examples each replica has. Out: the kinds. For 8 machines with one replica each, and 20
examples::

    machines 1, 2, 3       3 examples    two machines are built, and stand for all three
    machines 4, 5, 6, 7    2 examples    two machines are built, and stand for all four

The first machine is of no kind: it has the inputs of the session, sums and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autodist_core.kernel.alike.machines import Machine, machines_of
from autodist_core.kernel.placement.placement import Placement

STANDING = 2
"""How many machines of a kind are built: what is different between them tells how their nodes depend on the machine."""


@dataclass(frozen=True)
class Kind:
    """Machines that do the same. Two machines are `built` and stand for the `members`.

    >>> one, other = Machine(1, 2, 2), Machine(2, 4, 2)
    >>> Kind((one, other), (one, other, Machine(3, 6, 2)), examples=(8, 8)).first
    Machine(task=1, first=2, count=2)
    """

    built: tuple[Machine, Machine]
    members: tuple[Machine, ...]
    examples: tuple[int, ...]
    """How many examples each replica of a machine has, if the graph is for these sizes only; else 0 for each."""

    @property
    def first(self) -> Machine:
        """The machine whose nodes become functions."""
        return self.built[0]


def kinds_of(placement: Placement, sizes: Sequence[int] = ()) -> tuple[Kind, ...]:
    """Return the kinds of all machines but the first; none if it is not worth it, or if machines are not alike.

    `sizes` is the number of examples of each replica, if the graph is for these sizes only.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placement import inference
    >>> addresses = tuple(f"10.0.0.{index}" for index in range(1, 9))
    >>> placement = inference(tuple(f"{address}:CPU:0" for address in addresses), Tasks("run", addresses))
    >>> [len(kind.members) for kind in kinds_of(placement)]
    [7]
    >>> [[machine.task for machine in kind.members] for kind in kinds_of(placement, (3, 3, 3, 3, 2, 2, 2, 2))]
    [[1, 2, 3], [4, 5, 6, 7]]
    """
    machines = machines_of(placement)
    if placement.loose is not None or not _in_order(placement, machines):
        return ()
    found: list[Kind] = []
    of_each = [(machine, tuple(sizes[index] if sizes else 0 for index in machine.replicas)) for machine in machines[1:]]
    for examples, group in groupby(of_each, lambda each: each[1]):
        start = 1 + STANDING * len(found)
        if len(machines) <= start + STANDING:
            return ()
        found.append(Kind((machines[start], machines[start + 1]), tuple(machine for machine, _ in group), examples))
    return tuple(found)


def standing(placement: Placement, kinds: Sequence[Kind]) -> Placement:
    """Return the placement of the machines that are built.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placement import inference
    >>> addresses = tuple(f"10.0.0.{index}" for index in range(1, 9))
    >>> placement = inference(tuple(f"{address}:CPU:0" for address in addresses), Tasks("run", addresses))
    >>> [replica.name for replica in standing(placement, kinds_of(placement)).replicas]
    ['10.0.0.1:CPU:0', '10.0.0.2:CPU:0', '10.0.0.3:CPU:0']
    """
    count = kinds[-1].built[-1].replicas.stop
    owners = tuple(owner for owner in placement.owners if owner.replica is None or owner.replica < count)
    return replace(
        placement, replicas=placement.replicas[:count], owners=owners, memories=placement.memories[:count]
    )


def _in_order(placement: Placement, machines: Sequence[Machine]) -> bool:
    """Whether each machine has its number as a task, and all but the first have devices and memories alike."""
    if not placement.tasks.job or len({replica.host for replica in placement.replicas}) < len(machines):
        return False
    layouts = set()
    for machine in machines:
        devices = [placement.replicas[index].device for index in machine.replicas]
        if not all(f"/task:{machine.task}/" in device for device in devices):
            return False
        memories = [placement.memories[index] - machine.first for index in machine.replicas if placement.memories]
        if machine.task:
            layouts.add((*(device.rpartition("/device:")[2] for device in devices), *memories))
    return len(layouts) == 1
