"""Find what does the same in a placement, and choose two units of each kind that stand for it.

In: a placement, and how many examples each replica has. Out: the kinds. For 8 machines with one replica each, and 20
examples::

    machines 1, 2, 3       3 examples    two machines are built, and stand for all three
    machines 4, 5, 6, 7    2 examples    two machines are built, and stand for all four

The first machine is of no kind: it has the inputs of the session, sums and results. The replicas of a
machine do the same, too, but for the first: it has what is there once for the machine.

If all replicas have as many examples, one machine besides the first is enough: the first one is its **witness**, and
shows which nodes are on servers, and which constants have the number of a replica. If replicas draw random numbers, the
first machine needs a second replica for that, since its first one draws what one device draws. So of 8 machines with 8
replicas each, 2 machines are built, one of them with 3 replicas and the first with 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autodist_core.kernel.placement.placement import Placement, Replica
from autodist_core.kernel.units.unit import Unit, machines_of

STANDING = 2
"""How many units of a kind are built: what is different between them tells how their nodes depend on the unit. With a
witness, one is enough."""
ALL_BUILT = 1 + STANDING
"""The most machines of which each is built, whatever they do."""


@dataclass(frozen=True, eq=False)
class Kind:
    """Units that do the same. Two of them are `built` and stand for the `members`.

    If units of another machine are `like` these and two of them are built, one unit of this kind is enough. One unit
    also suffices if a `witness` machine has nodes of the same names.

    >>> one, two, three = (Unit(f"/job:run/task:{task}/device:CPU:0", task, task, 1) for task in (1, 2, 3))
    >>> Kind((one, two), (one, two, three)).first == one
    True
    """

    built: tuple[Unit, ...]
    members: tuple[Unit, ...]
    like: Kind | None = None
    witness: Unit | None = None

    @property
    def shown_by(self) -> tuple[Unit, ...]:
        """The built units that show how a node depends on its unit."""
        return (*self.built, *(self.like.built if self.like else ()), *([self.witness] if self.witness else []))

    @property
    def first(self) -> Unit:
        """The unit whose nodes become functions."""
        return self.built[0]


@dataclass(frozen=True)
class Kinds:
    """What does the same in a placement, and what is built of it.

    `machines` are the kinds of all machines but the first. `replicas` is a kind for each machine that is built, of all
    its replicas but the first; empty if machines have few replicas. Two replicas of such a kind are built on one
    machine, and one on the others. `built` has the replicas that are built, and `examples` how many examples each of
    these has, if the graph is for these sizes only.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placing import inference
    >>> addresses = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    >>> kinds = found_kinds(inference(tuple(f"{address}:CPU:0" for address in addresses), Tasks("run", addresses)))
    >>> len(kinds.machines), kinds.replicas, [replica.number for replica in kinds.built]
    (1, (), [0, 1, 2])
    """

    machines: tuple[Kind, ...]
    replicas: tuple[Kind, ...]
    built: tuple[Replica, ...]
    examples: tuple[int, ...]


def found_kinds(placement: Placement, sizes: Sequence[int] = (), standing: int = STANDING) -> Kinds | None:
    """Return what does the same in a placement; None if machines are not alike, or if that is not worth it.

    `sizes` is the number of examples of each replica, if the graph is for these sizes only. `standing` machines of each
    kind are built: two, or one with the first machine as its witness.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placing import inference
    >>> addresses = tuple(f"10.0.0.{index}" for index in range(1, 9))
    >>> tasks = Tasks("run", addresses)
    >>> placement = inference(tuple(f"{address}:CPU:0" for address in addresses), tasks)
    >>> kinds = found_kinds(placement, (3, 3, 3, 3, 2, 2, 2, 2))
    >>> [[machine.task for machine in kind.members] for kind in kinds.machines], kinds.examples
    ([[1, 2, 3], [4, 5, 6, 7]], (3, 3, 3, 2, 2))
    >>> placement = inference(tuple(f"{address}:GPU:{index}" for address in addresses for index in range(8)), tasks)
    >>> [replica.number for replica in found_kinds(placement).built]
    [0, 1, 8, 9, 10, 16, 17]
    >>> [replica.number for replica in found_kinds(placement, standing=1).built]
    [0, 1, 8, 9, 10]
    """
    machines = machines_of(placement)
    if placement.loose is not None or len(machines) <= ALL_BUILT or not _in_order(placement, machines):
        return None
    kinds: list[Kind] = []
    examples = [sizes[index] for index in machines[0].replicas if sizes]
    of_each = [(machine, tuple(sizes[index] for index in machine.replicas if sizes)) for machine in machines[1:]]
    for counts, group in groupby(of_each, lambda each: each[1]):
        start = 1 + standing * len(kinds)
        if len(machines) <= start + STANDING:
            return None
        witness = machines[0] if standing == 1 else None
        members = tuple(machine for machine, _ in group)
        kinds.append(Kind(machines[start : start + standing], members, witness=witness))
        examples += counts * standing
    built = [machines[0], *(machine for kind in kinds for machine in kind.built)]
    replicas = [placement.replicas[index] for machine in built for index in machine.replicas]
    example_of = dict(zip(replicas, examples, strict=bool(examples)))
    followers = _followers(placement, built, example_of)
    wanted = {unit.first for kind in followers for unit in kind.built} | {machine.first for machine in built}
    kept = [replica for replica in replicas if not followers or replica.index in wanted]
    return Kinds(
        tuple(kinds), tuple(followers),
        tuple(replace(replica, index=index, stands_at=replica.number) for index, replica in enumerate(kept)),
        tuple(example_of[replica] for replica in kept if examples),
    )


def standing(placement: Placement, built: Sequence[Replica]) -> Placement:
    """Return the placement of the replicas that are built.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placing import inference
    >>> addresses = tuple(f"10.0.0.{index}" for index in range(1, 9))
    >>> placement = inference(tuple(f"{address}:CPU:0" for address in addresses), Tasks("run", addresses))
    >>> [replica.name for replica in standing(placement, found_kinds(placement).built).replicas]
    ['10.0.0.1:CPU:0', '10.0.0.2:CPU:0', '10.0.0.3:CPU:0']
    """
    index_of = {replica.number: replica.index for replica in built}
    owners = tuple(
        owner if owner.replica is None else replace(owner, replica=index_of[owner.replica])
        for owner in placement.owners if owner.replica is None or owner.replica in index_of
    )
    memories = tuple(index_of[placement.memories[number]] for number in index_of if placement.memories)
    return replace(placement, replicas=tuple(built), owners=owners, memories=memories)


def _followers(placement: Placement, machines: Sequence[Unit], examples: dict[Replica, int]) -> list[Kind]:
    """Return a kind for each machine, of all its replicas but the first; none if they are few, or not alike.

    The first machine is the least like the others. So two replicas of another one are built, if that is possible.
    """
    units: list[tuple[int, tuple[Unit, ...]]] = []
    for machine in machines:
        replicas = [placement.replicas[index] for index in machine.replicas[1:]]
        counts = {examples.get(replica, 0) for replica in replicas}
        if len(replicas) <= STANDING or len(counts) > 1:
            return []
        units.append((counts.pop(), tuple(
            Unit(each.device, machine.task, each.number, 1, is_machine=False) for each in replicas
        )))
    twice: dict[int, Kind] = {}
    for count, found in (*units[1:], units[0]):
        twice.setdefault(count, Kind(found[:STANDING], found))
    return [
        twice[count] if twice[count].members is found else Kind(found[:1], found, twice[count])
        for count, found in units
    ]


def _in_order(placement: Placement, machines: Sequence[Unit]) -> bool:
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
