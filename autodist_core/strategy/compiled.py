"""The compiled strategy: frozen values that say, for each variable, where its gradient is reduced and its update runs.

StrategyCompiler makes a `CompiledStrategy` from a Strategy, a GraphItem and a ResourceSpec. The plan prints it, and the
kernels build the distributed graph from it. It holds one `VariablePlan` for each trainable variable, and a plan of a
partitioned variable holds one for each shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd, inf
from typing import Any, TypeGuard

from autodist_core.errors import amount
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step.graph_item import Variable
from autodist_core.strategy.partition import shard_sizes
from autodist_core.strategy.synchronizers import AllReducePlan, Node, PSPlan, Synchronizer
from autodist_core.strategy.wire import Wire, wire

_MIRRORED: dict[str, Any] = {"gathered": False, "again_within": 0, "wire_dtype": ""}


@dataclass(frozen=True)
class VariablePlan:
    """The plan of one variable, or of one shard of it.

    For a variable that is not partitioned, ``synchronizer`` says how the variable is synchronized. For a partitioned
    variable, each shard has a plan of its own. ``synchronizer`` is then their common one with the destinations of all
    shards, or that of the first shard if the shards differ in more than their destinations.

    >>> table = Variable("table", (5, 4), "float32")
    >>> a, b = PSPlan(("a:CPU:0",)), PSPlan(("b:CPU:0",))
    >>> shards = VariablePlan(table.part(0, 0, 0, 3, ""), a), VariablePlan(table.part(1, 0, 3, 2, ""), b)
    >>> plan = VariablePlan(table, PSPlan(("a:CPU:0", "b:CPU:0")), shards)
    >>> plan.text
    'split(axis=0, shards=2) ps(a:CPU:0, b:CPU:0)'
    >>> [piece.variable.shape for piece in plan.pieces]
    [(3, 4), (2, 4)]
    >>> plan.bytes_on_servers, plan.unpartitioned({"a:CPU:0": 4}).text
    (Counter({'a:CPU:0': 48, 'b:CPU:0': 32}), 'ps(b:CPU:0)')
    """

    variable: Variable
    synchronizer: Synchronizer
    shards: tuple[VariablePlan, ...] = ()
    note: str = ""
    """What the builder noted about this variable."""

    @property
    def pieces(self) -> tuple[VariablePlan, ...]:
        """The plans of the shards, or the plan itself of a variable that is not partitioned."""
        return self.shards or (self,)

    @property
    def axis(self) -> int:
        """The axis along which the variable is split; 0 for a variable that is not partitioned."""
        return self.pieces[0].variable.axis

    @property
    def wire(self) -> Wire:
        """What a replica sends for the gradient of a variable, or of a shard, in one piece."""
        return wire(self.synchronizer, self.variable.shape, self.variable.dtype)

    def unpartitioned(self, held: Mapping[str, int]) -> VariablePlan:
        """Return the plan of the same variable in one piece, on the destination that has the fewest bytes so far."""
        synchronizer = self.synchronizer
        if isinstance(synchronizer, PSPlan):
            place = min(synchronizer.destinations, key=lambda name: held.get(name, 0))
            synchronizer = replace(synchronizer, destinations=(place,), factor_rows=0, **_MIRRORED)
        return VariablePlan(self.variable, synchronizer, note=self.note)

    @property
    def gathered(self) -> PSPlan | None:
        """How replicas, which have no mirror, gather the variable from its shards for each use; None if they do not.

        If the shards' settings differ, those of the first one count.
        """
        used = [shard.synchronizer for shard in self.shards if isinstance(shard.synchronizer, PSPlan)]
        return used[0] if used and len(used) == len(self.shards) and all(each.gathered for each in used) else None

    @property
    def wire_dtype(self) -> str:
        """The type in which gathered values and their gradients travel."""
        return self.shards[0].wire.dtype if self.gathered else ""

    @property
    def with_mirrors(self) -> VariablePlan:
        """The same plan of a variable that is gathered, but with mirrors on the replicas."""
        shards = tuple(replace(each, synchronizer=replace(each.synchronizer, **_MIRRORED)) for each in self.shards)
        return replace(self, synchronizer=replace(self.synchronizer, **_MIRRORED), shards=shards)

    @property
    def bytes_on_servers(self) -> Counter[str]:
        """The bytes of the variable that each reduction destination has."""
        found = Counter[str]()
        for each in self.pieces:
            if isinstance(each.synchronizer, PSPlan):
                found[each.synchronizer.destinations[0]] += each.variable.byte_size
        return found

    @property
    def text(self) -> str:
        """The plan as text: the partitioning, if there is one, and then the synchronizers."""
        sizes = tuple(each.variable.shape[self.axis] for each in self.shards)
        alike = not sizes or sizes == shard_sizes(sum(sizes), len(sizes))
        shares = () if alike else [size // gcd(*sizes) for size in sizes]
        return str(Node.of(self.variable, [each.synchronizer for each in self.pieces], self.axis, shares))


def allows_lead(synchronizer: Synchronizer) -> TypeGuard[PSPlan]:
    """Whether this synchronizer lets a replica be ahead of another one, by staleness or by asynchronous updates.

    >>> allows_lead(PSPlan(("a:CPU:0",), staleness=2)), allows_lead(PSPlan(("a:CPU:0",))), allows_lead(AllReducePlan())
    (True, False, False)
    """
    return isinstance(synchronizer, PSPlan) and (not synchronizer.sync or synchronizer.staleness > 0)


@dataclass(frozen=True)
class CompiledStrategy:
    """A strategy that was checked: the replicas, and one plan for each trainable variable, in graph order.

    >>> kernel = Variable("dense/kernel", (3, 2), "float32")
    >>> plan = VariablePlan(kernel, PSPlan(("a:CPU:0",), staleness=2))
    >>> strategy = CompiledStrategy("3f9c21", ("a:GPU:0", "b:GPU:0"), (plan,))
    >>> print(strategy)
    strategy 3f9c21 @ 2 replicas
      replica a:GPU:0
      replica b:GPU:0
      dense/kernel : f32[3,2]  ps(a:CPU:0, staleness=2)
    >>> strategy.allowed_lead, strategy.compresses
    (2, False)
    """

    id: str
    replicas: tuple[str, ...]
    variables: tuple[VariablePlan, ...]
    notes: tuple[str, ...] = ()
    """What the builder noted about the strategy as a whole."""
    in_step_reason: str = ""
    """Why the captured step keeps the replicas in step although the strategy allows a lead; empty if it does not."""

    @property
    def machines(self) -> tuple[str, ...]:
        """The addresses of the machines with replicas or with servers.

        >>> CompiledStrategy("3f9c21", ("10.0.0.1:CPU:0", "10.0.0.2:CPU:0"), ()).machines
        ('10.0.0.1', '10.0.0.2')
        """
        servers = [name for each in self.synchronizers if isinstance(each, PSPlan) for name in each.destinations]
        return tuple(dict.fromkeys(DeviceSpec.parse(name).address for name in (*self.replicas, *servers)))

    @property
    def synchronizers(self) -> list[Synchronizer]:
        """Those of all variables and shards."""
        return [each.synchronizer for plan in self.variables for each in plan.pieces]

    def for_step(self, unpartitioned: Iterable[str], mirrored: Collection[str] = ()) -> CompiledStrategy:
        """The strategy as one captured step carries it out.

        ``unpartitioned`` names the variables that this step does not allow to be partitioned. They are spread over
        their destinations by their bytes. ``mirrored`` names the variables that this step does not allow to be
        gathered.

        >>> strategy = CompiledStrategy("3f9c21", ("a:GPU:0", "b:GPU:0"), ())
        >>> strategy.for_step([]) == strategy
        True
        """
        names, plans = frozenset(unpartitioned), {plan.variable.name: plan for plan in self.variables}
        split = (plan.bytes_on_servers for name, plan in plans.items() if name not in names)
        held = sum(split, Counter[str]())
        for name in (name for name in plans if name in names):
            plans[name] = plans[name].unpartitioned(held)
            held += plans[name].bytes_on_servers
        fitted = (plan.with_mirrors if name in mirrored else plan for name, plan in plans.items())
        return replace(self, variables=tuple(fitted))

    @property
    def allowed_lead(self) -> float | None:
        """By how many steps a replica may be ahead of the slowest one; ``None`` if a variable keeps all in step.

        The smallest staleness of all synchronous variables counts. Without one, the lead is infinite.
        """
        used = self.synchronizers
        leading = [each for each in used if allows_lead(each)]
        if len(self.replicas) < 2 or not leading or len(leading) < len(used):
            return None
        return min((each.staleness for each in leading if each.sync), default=inf)

    @property
    def compresses(self) -> bool:
        """Whether several replicas exchange the gradient of at least one variable through a compressor."""
        return len(self.replicas) > 1 and any(
            isinstance(each, AllReducePlan) and each.compressor != "NoneCompressor" for each in self.synchronizers
        )

    def __str__(self) -> str:
        names = max((len(plan.variable.name) for plan in self.variables), default=0)
        types = max((len(plan.variable.type_text) for plan in self.variables), default=0)
        return "\n".join([
            f"strategy {self.id} @ {amount(len(self.replicas), 'replica')}",
            *(f"  replica {replica}" for replica in self.replicas),
            *(f"  {each.variable.name:{names}} : {each.variable.type_text:{types}}  {each.text}"
              for each in self.variables),
        ])
