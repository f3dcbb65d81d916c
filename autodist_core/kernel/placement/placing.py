"""Place the variables of a captured step: make a `Placement` of a compiled strategy.

In: a captured step, a compiled strategy and the setting `share_memory`. Out: a `Placement` (see `placement`).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from autodist_core.kernel.analysis.ownership import slots
from autodist_core.kernel.partitioner import VariablePartitioner
from autodist_core.kernel.placement.arrangement import arrange, optimizer_state
from autodist_core.kernel.placement.devices import Tasks
from autodist_core.kernel.placement.placement import MEMORY, Owner, Placement, Replica
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.grouping import by_key, grouped
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan
from autodist_core.strategy.synchronizers import AllReducePlan, PSPlan


def _replicas(names: tuple[str, ...], tasks: Tasks) -> tuple[Replica, ...]:
    return tuple(Replica(index, name, tasks.device(name)) for index, name in enumerate(names))


def inference(names: tuple[str, ...], tasks: Tasks | None = None) -> Placement:
    """Return a placement for functions that train nothing: every replica has a copy of every variable.

    >>> print(inference(("10.0.0.1:CPU:0", "10.0.0.1:CPU:1")))
    placement over 2 replicas
      replica0 = 10.0.0.1:CPU:0 on /device:CPU:0
      replica1 = 10.0.0.1:CPU:1 on /device:CPU:1
      owner replica0 on /device:CPU:0: 0 variables
      owner replica1 on /device:CPU:1: 0 variables
    """
    tasks = tasks or Tasks()
    replicas = _replicas(names, tasks)
    owners = tuple(Owner(replica.prefix, replica.device, replica=replica.index) for replica in replicas)
    return Placement(replicas, owners, tasks=tasks)


def place(
    item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None = None, tasks: Tasks | None = None
) -> Placement:
    """Place the variables of a captured training step on devices; `share_memory=None` leaves that to the strategy.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
    >>> placement = place(item, StrategyCompiler(item, spec).compile(PS().build(item, spec)))
    >>> placement.shares_memory, [owner.name for owner in placement.owners]
    (True, ['memory'])
    """
    tasks = tasks or Tasks()
    arranged = arrange(item, strategy, share_memory)
    one_memory = arranged.shares_memory or (arranged.compiled_together and not tasks.job)
    replicas = _replicas(strategy.replicas, tasks)
    partitioner = VariablePartitioner() if one_memory else arranged.partitioner
    split = partitioner.apply(item)
    step = StepIndex.of(split)
    parts = grouped((each for each in split.variables if each.part_of), lambda shard: shard.part_of)
    plans = {plan.variable.name: plan for plan in arranged.strategy.variables}
    plans |= {shard.variable.name: shard for plan in partitioner.plans.values() for shard in plan.shards}
    # A step without training trains none of its variables, and has them where a strategy says.
    trained = step.trained.keys() or plans.keys() & step.variables.keys()
    family = {name: name for name in trained} | slots(step)
    shared_state = optimizer_state(step) - parts.keys()
    # Compute reads a split variable whole, and not its shards, unless it looks rows up in them.
    whole = frozenset(name for name in trained if not step.variables[name].part_of)
    mirrored = whole | (step.read_by_compute & frozenset(family))
    if one_memory:
        if not tasks.job:
            # One memory is one device.
            replicas = tuple(replace(replica, device=replicas[0].device) for replica in replicas)
        memory = Owner(MEMORY, replicas[0].device, frozenset(family))
        return Placement(
            replicas, (memory,), plans, dict.fromkeys(family, MEMORY), shared_state, mirrored=mirrored, tasks=tasks
        )
    reduced = frozenset(name for name, head in family.items() if isinstance(plans[head].synchronizer, AllReducePlan))
    leads = arranged.memories
    owners = [Owner(r.prefix, r.device, reduced, r.index) for r in replicas if leads[r.index] == r.index]
    owner_of = dict.fromkeys(reduced, replicas[0].prefix)
    said = ((name, plans[head].synchronizer) for name, head in family.items())
    served = by_key((each.destinations[0], name) for name, each in said if isinstance(each, PSPlan))
    for destination, names in served.items():
        label = f"server_{destination.replace(':', '_').replace('[', '').replace(']', '')}"
        owners.append(Owner(label, tasks.device(destination), frozenset(names)))
        owner_of.update(dict.fromkeys(names, label))
    remote = _remote_rows(trained, step, plans, partitioner.looked_up)
    return Placement(
        replicas, tuple(owners), plans, owner_of, shared_state, remote, partitioner,
        parts, frozenset(v.name for v in split.variables if v.name in parts and v.handle),
        arranged.strategy.allowed_lead if arranged.is_loose else None, mirrored, tasks, leads,
    )


def _remote_rows(
    trained: Collection[str], step: StepIndex, plans: Mapping[str, VariablePlan], looked_up: Collection[str]
) -> frozenset[str]:
    """Return the tables, and the shards, that replicas have no copy of. With `local_replication` they have one."""
    found = []
    for name in trained:
        synchronizer, variable = plans[name].synchronizer, step.variables[name]
        if isinstance(synchronizer, PSPlan) and (variable.is_sparse or variable.part_of in looked_up):
            found += [] if synchronizer.local_replication else [name]
    return frozenset(found)

