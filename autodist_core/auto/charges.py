"""What one variable adds to the work of a step: bytes on each link, operations and updates on each machine.

In: the plan of a variable, and the profiles. Out: a `Charge`. `prediction` adds the charges up. For a kernel of 1 MB
over three machines::

    all_reduce          1.33 MB on each link, in each direction; update 1 MB on each machine
    ps(10.0.0.1)        push 1 MB to 10.0.0.1 from each other machine, pull 1 MB to each; update 1 MB there

Bytes are counted as `bytes_of_links` counts them, and in two phases: the backward pass hides what travels in the first
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from autodist_core.auto.profiles import ClusterProfile, ModelProfile
from autodist_core.resource_spec import DeviceSpec
from autodist_core.strategy.compiled import VariablePlan
from autodist_core.strategy.factor_rows import AT_ONCE_IN_AGENTS
from autodist_core.strategy.synchronizers import AllReducePlan, PSPlan

INTERVALS = 16
"""Gradients leave in so many intervals of compute: a bucket, too, leaves when its last gradient is there."""


@dataclass(frozen=True)
class Served:
    """What the server of one piece gets and sends, for each other machine; bytes.

    >>> Served("10.0.0.1", push=4, pull=4, update=4).fetch
    0.0
    """

    machine: str
    push: float
    pull: float
    update: float
    fetch: float = 0.0
    """The rows that a machine looks up before its forward pass."""
    on_gpu: bool = False


@dataclass(frozen=True)
class Charge:
    """What one variable adds to a step.

    >>> Charge("kernel", interval=23, ring=100.0).servers
    ()
    """

    name: str
    interval: int
    """The interval of compute at whose end the gradient leaves."""
    ring: float = 0.0
    """Bytes on each machine's link, in each direction, while gradients travel."""
    by_sends: float = 0.0
    """How many of these machines send each other without a collective."""
    update: float = 0.0
    """Bytes that every replica updates."""
    work: float = 0.0
    """Operations of each machine for the factors of other machines' examples."""
    bus: float = 0.0
    """Bytes between each GPU and the rest of its machine."""
    servers: tuple[Served, ...] = ()


@dataclass(frozen=True)
class Charging:
    """Makes the charges of variables in batches of some size.

    >>> from autodist_core import GraphItem, ResourceSpec, Variable
    >>> spec = ResourceSpec({"nodes": [{"address": f"10.0.0.{n}", "chief": n == 1} for n in (1, 2, 3)]})
    >>> item = GraphItem((Variable("kernel", (250_000,), "float32"),))
    >>> charging = Charging(ModelProfile.assumed(item), ClusterProfile.assumed(spec), 64)
    >>> round(charging.of(VariablePlan(item.variables[0], AllReducePlan())).ring)
    1333333
    >>> charging.of(VariablePlan(item.variables[0], PSPlan(("10.0.0.1:CPU:0",)))).servers
    (Served(machine='10.0.0.1', push=1000000.0, pull=1000000.0, update=1000000.0, fetch=0.0, on_gpu=False),)
    """

    model: ModelProfile
    cluster: ClusterProfile
    examples: int

    def of(self, plan: VariablePlan) -> Charge:
        """The charge of one variable."""
        name, times = plan.variable.name, max(self.model.times.get(plan.variable.name, 1), 1)
        interval = min(INTERVALS - 1, max(0, int(self.model.ready.get(name, 1.0) * INTERVALS - 1e-9)))
        if plan.variable.is_sparse:
            return self._rows(plan, interval, times)
        ring = by_sends = update = work = bus = 0.0
        servers = []
        of_factors = self._of_factors(plan)
        machines, most = len(self.cluster.machines), max(each.replicas for each in self.cluster.machines)
        on_gpus = any(each.on_gpus for each in self.cluster.machines)
        for piece in plan.pieces:
            size, sent, each = piece.variable.byte_size, times * piece.wire.bytes, piece.synchronizer
            if isinstance(each, PSPlan):
                server = DeviceSpec.parse(each.destinations[0])
                passes = 1.5 if each.gathered else 1  # gathered for the forward and for the backward pass
                gradient = float(sent)
                if name in self.model.factors and self._factors_travel(each.factor_rows):
                    gradient = self.examples / machines * sum(piece.variable.shape) * plan.variable.item_size
                servers.append(Served(
                    server.address, gradient, float(passes * sent), float(times * size),
                    on_gpu=server.kind == "GPU",
                ))
                bus += 2 * passes * sent if on_gpus else 0.0
                continue
            update += times * size
            bus += 2 * sent * (most - 1) / most if on_gpus else 0.0
            # A ring of machines and sends have as many bytes on each link.
            travelling = (self.examples * of_factors if of_factors else 2 * sent) * (machines - 1) / machines
            ring += travelling
            if not of_factors and each.by_sends(machines, on_cpus=not on_gpus):
                by_sends += travelling
            if of_factors:
                work += 2 * prod(piece.variable.shape) * self.examples * (machines - 1) / machines
        return Charge(name, interval, ring, by_sends, update, work, bus, tuple(servers))

    def _of_factors(self, plan: VariablePlan) -> int:
        """The bytes of an example's factors where they travel in place of the gradient; else 0."""
        each = plan.synchronizer
        travels = isinstance(each, AllReducePlan) and not plan.shards and self._factors_travel(each.factor_rows)
        return self.model.factors.get(plan.variable.name, 0) if travels else 0

    def _factors_travel(self, factor_rows: int) -> bool:
        machines = self.cluster.machines
        between = len(machines) > 1 and not any(one.on_gpus or one.replicas > AT_ONCE_IN_AGENTS for one in machines)
        return between and self.examples <= factor_rows

    def _rows(self, plan: VariablePlan, interval: int, times: int) -> Charge:
        """The charge of a table: of each replica's rows, and of the rows that a server is asked for."""
        shape = plan.variable.shape
        machines, width = len(self.cluster.machines), prod(shape[1:]) * plan.variable.item_size
        rows = times * self.model.rows.get(plan.variable.name, 1.0) * self.examples
        of_machine, whole = rows * width / machines, rows * width
        updated = plan.variable.byte_size if plan.variable.name in self.model.slots else whole
        served = [each.synchronizer for each in plan.pieces if isinstance(each.synchronizer, PSPlan)]
        if not served:
            return Charge(plan.variable.name, interval, whole * (machines - 1) / machines, update=updated)
        part = 1 / len(plan.pieces)
        return Charge(plan.variable.name, interval, servers=tuple(
            Served(
                DeviceSpec.parse(each.destinations[0]).address, of_machine * part,
                plan.variable.byte_size * part if each.local_replication else 0.0, updated * part,
                0.0 if each.local_replication else of_machine * part,
            ) for each in served
        ))  # fmt: skip
