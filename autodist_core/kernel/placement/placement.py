"""Placement: which device holds which copy of each variable, and which owner runs its update.

In: a captured step and a compiled strategy. Out: a `Placement`. With one parameter server and two replicas::

    kernel, momentum    a copy on the server, its owner; of the kernel also a mirror on each replica
    iterations          a copy with every owner: shared state of the optimizer
    moving mean         a copy on each replica

An **owner** is a device that holds variables and runs their update. A **mirror** is the copy on which a replica
computes. There are three kinds of variables:

- Trained variables and their optimizer slots are with their owners. With all-reduce, every replica is an owner. With a
  parameter server, the reduction destination is the owner, and the replicas have mirrors.
- Shared state of the optimizer (iterations, learning rate, loss scale) has a copy with every owner. All of these copies
  change in the same way.
- Each other variable (batch-norm statistics, metrics, seeds) has a copy with every replica.

Replicas on CPU devices of one process can share memory, and so one owner and one mirror (`share_memory`). Over several
machines, the first replica of each machine has the copies for the other replicas of that machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autodist_core.errors import amount
from autodist_core.kernel.analysis.gradient_flow import after_update, handed_back
from autodist_core.kernel.partitioner import VariablePartitioner
from autodist_core.kernel.placement.devices import Tasks, host_of
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step.graph_item import Variable
from autodist_core.step.grouping import grouped
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import VariablePlan

MEMORY = "memory"


@dataclass(frozen=True)
class Replica:
    """One of the devices that computes on a slice of each batch.

    >>> replica = Replica(1, "10.0.0.1:GPU:1", "/device:GPU:1")
    >>> replica.copy_of("dense/MatMul"), replica.host
    ('replica1/dense/MatMul', '/device:CPU:0')
    """

    index: int
    """Its place among the replicas of the placement."""
    name: str
    device: str
    stands_at: int | None = None
    """Its number among all replicas, if the placement has only those that stand for all (`kernel/units/`)."""

    @property
    def number(self) -> int:
        """Its number among all replicas."""
        return self.index if self.stands_at is None else self.stands_at

    @cached_property
    def prefix(self) -> str:
        """The beginning of the names of its nodes."""
        return f"replica{self.number}"

    def copy_of(self, name: str) -> str:
        """The name of its copy of a captured node or tensor."""
        return f"{self.prefix}/{name}"

    @property
    def host(self) -> str:
        """The CPU of the process that has its device."""
        return host_of(self.device)


def by_host(replicas: Iterable[Replica]) -> list[list[Replica]]:
    """Return the replicas of each machine.

    >>> one, two = (Replica(index, f"10.0.0.{index}:CPU:0", f"/job:run/task:{index}/device:CPU:0") for index in (0, 1))
    >>> by_host([one, two]) == [[one], [two]]
    True
    """
    return list(grouped(replicas, lambda replica: replica.host).values())


@dataclass(frozen=True)
class Owner:
    """A device that runs the update of the variables it holds.

    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> owner = example_placement(PS()).owners[-1]
    >>> owner.name, owner.device, sorted(owner.variables)
    ('server_localhost_CPU_0', '/device:CPU:0', ['kernel', 'velocity'])
    """

    name: str
    device: str
    variables: frozenset[str] = frozenset()
    replica: int | None = None

    def copy_of(self, name: str) -> str:
        """The name of its copy of a captured node of the update."""
        return f"update/{self.name}/{name}"


@dataclass(frozen=True)
class Copy:
    """One concrete variable of the session.

    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> [copy.name for copy in example_placement(PS()).copies("kernel")]
    ['kernel@server_localhost_CPU_0', 'kernel@replica0', 'kernel@replica1']
    """

    name: str
    device: str
    replica: int | None = None
    stored: str = ""
    """The name of TensorFlow's variable, if it is not the copy's own."""

    @property
    def shared_name(self) -> str:
        """The name of TensorFlow's variable on the device. Replicas of several machines may have variables alike."""
        return self.stored or self.name

    def starts_from_zero(self, variable: Variable) -> bool:
        """Whether this copy of a variable starts from zero: that of a sum on every replica but the first."""
        return bool(self.replica) and variable.aggregation == "sum"


@dataclass(frozen=True)
class Placement:
    """The copies and the owner of every variable, for one strategy.

    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> placement = example_placement(PS())
    >>> placement.owner_of["velocity"], sorted(placement.optimizer_state)
    ('server_localhost_CPU_0', ['iterations'])
    """

    replicas: tuple[Replica, ...]
    owners: tuple[Owner, ...]
    plans: Mapping[str, VariablePlan] = field(default_factory=dict)
    owner_of: Mapping[str, str] = field(default_factory=dict)
    """The owner of each trained variable and slot; `replica0` stands for all replicas if all of them are owners."""
    optimizer_state: frozenset[str] = frozenset()
    """The shared state of the optimizer. Every owner has a copy of it."""
    remote_rows: frozenset[str] = frozenset()
    """The tables that replicas have no copy of: they look rows up on the server."""
    partitioner: VariablePartitioner = field(default_factory=VariablePartitioner)
    parts: Mapping[str, Sequence[Variable]] = field(default_factory=dict)
    """The shards of each split variable."""
    assembled: frozenset[str] = frozenset()
    """The split variables that every replica has a copy of, put together from the shards after each update."""
    loose: float | None = None
    """By how many steps a replica may be ahead of the slowest one; None where replicas wait for each other."""
    mirrored: frozenset[str] = frozenset()
    """The variables whose new values go to the mirrors: trained variables, and slots and shards that compute reads."""
    tasks: Tasks = field(default_factory=Tasks)
    memories: tuple[int, ...] = ()
    """For each replica, the index of the replica on whose copies it computes; empty if each has its own copies."""
    only_read: frozenset[str] = frozenset()
    """The variables that the step writes nowhere, where all replicas are on one device: they read one copy."""

    def reading(self, step: StepIndex) -> Placement:
        """Return the placement for one step: on one device, what the step only reads has one copy for all replicas."""
        if self.tasks.job or self.loose is not None or len({replica.device for replica in self.replicas}) > 1:
            return self
        written = step.written_by_compute | step.written_by_update | self.updated
        names = {each.name for each in step.item.variables if each.aggregation != "sum"}
        return replace(self, only_read=frozenset(names - written))

    @property
    def updated(self) -> frozenset[str]:
        """The variables that an update may write."""
        return frozenset(self.owner_of.keys() | self.optimizer_state | self.parts.keys())

    @property
    def nodes(self) -> tuple[str, ...]:
        """The addresses of the nodes, in the order of TensorFlow's tasks: the chief's first."""
        return self.tasks.addresses or (DeviceSpec.parse(self.replicas[0].name).address,)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The CPU of each machine with replicas, in the order of the replicas."""
        return tuple(dict.fromkeys(replica.host for replica in self.replicas))

    def at_each_host(self, owners: Iterable[Owner]) -> Iterator[tuple[list[Replica], list[Owner]]]:
        """Yield the replicas of each machine, with those of these owners that are replicas there."""
        for machine in by_host(self.replicas):
            indices = [replica.index for replica in machine]
            yield machine, [owner for owner in owners if owner.replica in indices]

    @property
    def shares_memory(self) -> bool:
        """Whether all replicas compute on one copy of the weights."""
        return self.owners[0].name == MEMORY

    @property
    def compiled_together(self) -> bool:
        """Whether XLA compiles compute and update together: they are in one process, and there is one memory."""
        alone = self.shares_memory or len(self.replicas) == 1
        return alone and not self.tasks.job and self.loose is None

    @property
    def on_cpus_of_one_process(self) -> bool:
        """Whether all devices are CPU devices of this process."""
        devices = [each.device for each in self.replicas] + [each.device for each in self.owners]
        return not self.tasks.job and all("/device:CPU:" in device for device in devices)

    def after_update(self, step: StepIndex) -> frozenset[str]:
        """Return the captured nodes that wait for reduced gradients; none for loose replicas, which use their own."""
        return frozenset() if self.loose else after_update(step)

    def handed_back(self, step: StepIndex) -> tuple[str, ...]:
        """Return the captured nodes whose values the update hands back to nodes after the update, and to results."""
        return () if self.loose else handed_back(step)

    def owner(self, name: str) -> Owner:
        """Return the owner of this name."""
        return next(owner for owner in self.owners if owner.name == name)

    def updater(self, variable: str, replica: Replica) -> Owner:
        """Return the owner from which a replica gets a trained variable's new value: itself if replicas are owners."""
        owner = self.owner(self.owner_of[variable])
        return owner if owner.replica is None else self.owner(self.holder(replica).prefix)

    def holder(self, replica: Replica) -> Replica:
        """Return the replica that holds the copies on which this replica computes."""
        return self.replicas[self.memories[replica.index]] if self.memories else replica

    def memory(self, replica: Replica) -> int:
        """Return the index of the first replica that computes on the same copies of the weights as this one."""
        return 0 if self.shares_memory else self.holder(replica).index

    def mirror(self, variable: str, replica: Replica) -> Copy:
        """Return the copy of a variable on which a replica computes."""
        trained = variable in self.owner_of or variable in self.optimizer_state or variable in self.assembled
        if self.shares_memory and trained:
            return self.owned_copy(variable, self.owners[0])
        if variable in self.remote_rows:
            return self.owned_copy(variable, self.owner(self.owner_of[variable]))
        if trained:
            replica = self.holder(replica)
        elif variable in self.only_read:
            replica = self.replicas[0]
        # XLA reads and writes variables of one device, and compiles such replicas together.
        device = self.replicas[0].device if self.compiled_together else replica.device
        return self._copy(variable, replica.prefix, device, replica.index)

    def owned_copy(self, variable: str, owner: Owner) -> Copy:
        """Return the copy of a variable that an owner updates, or that it reads if no update writes the variable."""
        if variable not in self.owner_of and variable not in self.optimizer_state and owner.replica is None:
            return self.mirror(variable, self.replicas[0])
        return self._copy(variable, owner.name, owner.device, owner.replica)

    def copies(self, variable: str) -> tuple[Copy, ...]:
        """Return every copy of a variable. Between steps, the first one has the value that counts."""
        found: list[Copy] = []
        if variable in self.parts and variable not in self.assembled:
            return ()
        if variable in self.owner_of or variable in self.optimizer_state:
            shared = variable in self.optimizer_state
            found += [self.owned_copy(variable, each) for each in self.owners if shared or variable in each.variables]
        if variable not in self.owner_of or variable in self.mirrored:
            found += [self.mirror(variable, replica) for replica in self.replicas]
        return tuple(dict.fromkeys(found))

    def read_from(self, variable: Variable) -> tuple[tuple[Variable, Copy], ...]:
        """Return what is read for a variable's value between steps: one copy of it, or one of each of its shards.

        If the chief's machine has a copy that every update keeps equal, that one is read: nothing crosses the wire.

        >>> from autodist_core.kernel.example import example_placement
        >>> from autodist_core.strategy import PartitionedPS
        >>> placement = example_placement(PartitionedPS())
        >>> [copy.name for _, copy in placement.read_from(Variable("kernel", (3, 1), "float32"))]
        ['kernel@replica0']
        >>> [shard.name for shard, _ in placement.read_from(Variable("velocity", (3, 1), "float32"))]
        ['velocity/part_0', 'velocity/part_1', 'velocity/part_2']
        """
        copies = self.copies(variable.name)
        near = [copy for copy in copies if host_of(copy.device) == self.tasks.chief]
        if near and self._kept_equal(variable.name):
            return ((variable, near[0]),)
        parts = self.parts.get(variable.name, ())
        return tuple((part, self.copies(part.name)[0]) for part in parts) or ((variable, copies[0]),)

    def homes(self, variable: Variable) -> tuple[Copy, ...]:
        """Return the copies of which one may be the user's own variable: each has the variable's value between steps.

        >>> from autodist_core.kernel.example import example_placement
        >>> from autodist_core.strategy import PS
        >>> [copy.name for copy in example_placement(PS()).homes(Variable("velocity", (3, 1), "float32"))]
        ['velocity@server_localhost_CPU_0']
        """
        if self._kept_equal(variable.name):
            return self.copies(variable.name)
        return () if variable.name in self.parts else self.copies(variable.name)[:1]

    def _kept_equal(self, variable: str) -> bool:
        """Whether all copies of a variable have the same value after each step."""
        if self.loose is not None:
            return False
        if variable in self.mirrored or variable in self.assembled or variable in self.optimizer_state:
            return True
        return variable in self.owner_of and self.owner(self.owner_of[variable]).replica is not None

    def _copy(self, variable: str, holder: str, device: str, replica: int | None) -> Copy:
        # Each device of a cluster has variables of its own. So their names are the same, and functions are alike.
        stored = f"{variable}@replica" if replica is not None and self.tasks.job else ""
        return Copy(f"{variable}@{holder}", device, replica, stored)

    def __str__(self) -> str:
        lines = [f"placement over {amount(len(self.replicas), 'replica')}"]
        lines += [f"  {replica.prefix} = {replica.name} on {replica.device}" for replica in self.replicas]
        sizes = ((owner, amount(len(owner.variables), "variable")) for owner in self.owners)
        lines += [f"  owner {owner.name} on {owner.device}: {size}" for owner, size in sizes]
        return "\n".join(lines)
