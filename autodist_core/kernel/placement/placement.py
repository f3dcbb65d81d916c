"""Where everything lives: which device holds which copy of which variable, and who runs whose update.

An **owner** is a device that holds variables and runs their update; a **mirror** is the copy that a replica computes
on. Three kinds of variables:

- *trained* ones and their optimizer slots live with their owners: with every replica for all-reduce, on a reduction
  destination for a parameter server (the replicas then hold mirrors);
- *shared state* of the optimizer (iterations, learning rate, loss scale) has a copy with every owner, and all evolve
  alike;
- everything else (batch-norm statistics, metrics, seeds) has a copy with every replica.

Replicas on CPU devices of one process share memory, so they may share one owner and one mirror: `share_memory`. Over
several machines the first of a machine's replicas has them, for those next to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autodist_core.kernel.analysis.ownership import slots
from autodist_core.kernel.partitioner import VariablePartitioner
from autodist_core.kernel.placement.arrangement import Arrangement, arrange, optimizer_state
from autodist_core.kernel.placement.devices import Tasks, host_of
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan
from autodist_core.strategy.synchronizers import AllReducePlan, PSPlan

MEMORY = "memory"


@dataclass(frozen=True)
class Replica:
    """One of the devices that computes on a slice of each batch."""

    index: int
    name: str
    device: str

    @property
    def prefix(self) -> str:
        """What the names of its nodes begin with."""
        return f"replica{self.index}"

    @property
    def host(self) -> str:
        """The CPU next to its device."""
        return host_of(self.device)


@dataclass(frozen=True)
class Owner:
    """A device that runs the update of the variables it holds."""

    name: str
    device: str
    variables: frozenset[str] = frozenset()
    replica: int | None = None


@dataclass(frozen=True)
class Copy:
    """One concrete variable of the session."""

    name: str
    device: str
    replica: int | None = None


@dataclass(frozen=True)
class Loose:
    """Replicas that do not wait for each other, and how many steps one may be ahead of the slowest."""

    bound: int | None
    """None where there is no bound: updates are asynchronous."""


@dataclass(frozen=True)
class Placement:
    """Copies and owners of every variable, for one strategy."""

    replicas: tuple[Replica, ...]
    owners: tuple[Owner, ...]
    plans: Mapping[str, VariablePlan] = field(default_factory=dict)
    owner_of: Mapping[str, str] = field(default_factory=dict)
    optimizer_state: frozenset[str] = frozenset()
    remote_rows: frozenset[str] = frozenset()
    partitioner: VariablePartitioner = field(default_factory=VariablePartitioner)
    parts: Mapping[str, tuple[Variable, ...]] = field(default_factory=dict)
    """The shards of what is split."""
    assembled: frozenset[str] = frozenset()
    """Of what is split, that of which every replica has a copy, put together after each update."""
    loose: Loose | None = None
    mirrored: frozenset[str] = frozenset()
    """What replicas look at and follow after each update: the trained variables, and slots that the step reads."""
    tasks: Tasks = field(default_factory=Tasks)
    memories: tuple[int, ...] = ()
    """For each replica the one on whose copies it computes; empty where each has its own."""

    @property
    def shares_memory(self) -> bool:
        """Whether all replicas compute on one copy of the weights."""
        return self.owners[0].name == MEMORY

    @property
    def on_cpus_of_one_process(self) -> bool:
        """Whether no GPU and no other process takes part."""
        devices = [each.device for each in self.replicas] + [each.device for each in self.owners]
        return not self.tasks.job and all("/device:CPU:" in device for device in devices)

    def owner(self, name: str) -> Owner:
        """The owner of that name."""
        return next(owner for owner in self.owners if owner.name == name)

    def updater(self, variable: str, replica: Replica) -> Owner:
        """The owner whose copy of a trained variable a replica follows: itself where all replicas update it."""
        owner = self.owner(self.owner_of[variable])
        return owner if owner.replica is None else self.owner(self.lead(replica).prefix)

    def lead(self, replica: Replica) -> Replica:
        """The replica that has the copies on which this one computes, and updates them if replicas do."""
        return self.replicas[self.memories[replica.index]] if self.memories else replica

    def mirror(self, variable: str, replica: Replica) -> Copy:
        """The copy on which a replica computes."""
        trained = variable in self.owner_of or variable in self.optimizer_state or variable in self.assembled
        if self.shares_memory and trained:
            return self.held(variable, self.owners[0])
        if variable in self.remote_rows:
            return self.held(variable, self.owner(self.owner_of[variable]))
        if trained:
            replica = self.lead(replica)
        return Copy(f"{variable}@{replica.prefix}", replica.device, replica.index)

    def held(self, variable: str, owner: Owner) -> Copy:
        """The copy that an owner updates, or, of what no update writes, the copy it reads."""
        if variable not in self.owner_of and variable not in self.optimizer_state and owner.replica is None:
            return self.mirror(variable, self.replicas[0])
        return Copy(f"{variable}@{owner.name}", owner.device, owner.replica)

    def copies(self, variable: str) -> tuple[Copy, ...]:
        """Every copy, the one that holds the truth between steps first."""
        found: list[Copy] = []
        if variable in self.parts and variable not in self.assembled:
            return ()
        if variable in self.owner_of or variable in self.optimizer_state:
            found += [self.held(variable, owner) for owner in self.owners if self._holds(owner, variable)]
        found += [self.mirror(variable, replica) for replica in self.replicas]
        return tuple(dict.fromkeys(found))

    def _holds(self, owner: Owner, variable: str) -> bool:
        return variable in owner.variables or variable in self.optimizer_state

    def __str__(self) -> str:
        lines = [f"placement over {len(self.replicas)} replicas"]
        lines += [f"  {replica.prefix} = {replica.name} on {replica.device}" for replica in self.replicas]
        lines += [f"  owner {owner.name} on {owner.device}: {len(owner.variables)} variables" for owner in self.owners]
        return "\n".join(lines)


def _replicas(names: tuple[str, ...], tasks: Tasks) -> tuple[Replica, ...]:
    return tuple(Replica(index, name, tasks.device(name)) for index, name in enumerate(names))


def inference(names: tuple[str, ...], tasks: Tasks | None = None) -> Placement:
    """A placement for functions that train nothing: every replica has its own copy of everything."""
    tasks = tasks or Tasks()
    replicas = _replicas(names, tasks)
    owners = tuple(Owner(replica.prefix, replica.device, replica=replica.index) for replica in replicas)
    return Placement(replicas, owners, tasks=tasks)


def place(
    item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None = None, tasks: Tasks | None = None
) -> Placement:
    """Decide where the variables of a captured training step live; `share_memory=None` leaves it to the strategy."""
    tasks = tasks or Tasks()
    arranged = arrange(item, strategy, share_memory)
    replicas, partitioner = _replicas(strategy.replicas, tasks), arranged.partitioner
    split = partitioner.apply(item)
    step, parts = StepIndex(split), _parts(split)
    plans = {plan.variable.name: plan for plan in arranged.strategy.variables}
    plans |= _plans_of_parts(split, partitioner)
    family = {name: name for name in step.trained} | slots(step)
    every_owners = optimizer_state(step) - parts.keys()
    mirrored = frozenset(step.trained) | (step.read_by_compute & frozenset(family))
    if arranged.shares_memory:
        memory = Owner(MEMORY, replicas[0].device, frozenset(family))
        return Placement(
            replicas, (memory,), plans, dict.fromkeys(family, MEMORY), every_owners, mirrored=mirrored, tasks=tasks
        )
    reduced = frozenset(name for name, head in family.items() if isinstance(plans[head].synchronizer, AllReducePlan))
    leads = arranged.memories
    owners = [Owner(r.prefix, r.device, reduced, r.index) for r in replicas if leads[r.index] == r.index]
    owner_of = dict.fromkeys(reduced, replicas[0].prefix)
    served: dict[str, list[str]] = {}
    for name, head in family.items():
        synchronizer = plans[head].synchronizer
        if isinstance(synchronizer, PSPlan):
            served.setdefault(synchronizer.destinations[0], []).append(name)
    for destination, names in served.items():
        label = f"server_{destination.replace(':', '_').replace('[', '').replace(']', '')}"
        owners.append(Owner(label, tasks.device(destination), frozenset(names)))
        owner_of.update(dict.fromkeys(names, label))
    return Placement(
        replicas, tuple(owners), plans, owner_of, every_owners, _remote_rows(step, plans), partitioner,
        parts, frozenset(v.name for v in split.variables if v.name in parts and v.handle), _loose(arranged),
        mirrored, tasks, leads,
    )


def _plans_of_parts(split: GraphItem, partitioner: VariablePartitioner) -> dict[str, VariablePlan]:
    found = {}
    for variable in split.variables:
        plan = partitioner.plans.get(variable.part_of)
        if plan is not None:
            shard = next(shard for shard in plan.shards if variable.name == plan.variable.part_name(shard.index))
            found[variable.name] = VariablePlan(variable, shard.synchronizer)
    return found


def _remote_rows(step: StepIndex, plans: Mapping[str, VariablePlan]) -> frozenset[str]:
    """Tables of which replicas have no copy; `local_replication` asks for one."""
    found = []
    for name in step.trained:
        synchronizer = plans[name].synchronizer
        if isinstance(synchronizer, PSPlan) and step.variables[name].is_sparse:
            found += [] if synchronizer.local_replication else [name]
    return frozenset(found)


def _parts(split: GraphItem) -> dict[str, tuple[Variable, ...]]:
    found: dict[str, tuple[Variable, ...]] = {}
    for variable in split.variables:
        if variable.part_of:
            found[variable.part_of] = (*found.get(variable.part_of, ()), variable)
    return found


def _loose(arranged: Arrangement) -> Loose | None:
    """How far replicas may drift apart, where nothing in the step or the strategy keeps them together."""
    lead = arranged.strategy.allowed_lead
    return Loose(lead.steps) if lead and arranged.drifts else None
