"""Bring a gradient of all replicas to one owner: added up if dense, all rows if sparse.

In: each replica's own gradient, `draft.local`. Out: the reduced gradient on the owner's device, `draft.reduced`. For a
dense gradient of two replicas::

    reduced/memory/0/kernel = AddN(replica0/gradient, replica1/gradient)

Over several machines, the small dense gradients of an owner travel together, and are added up together. So do the rows
of its sparse gradients travel.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Owner, Replica, by_host
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step import naming
from autodist_core.step.casts import grows
from autodist_core.step.graph_item import ALIKE, UNIQUE, Gradient
from autodist_core.step.grouping import grouped
from autodist_core.strategy.compiled import VariablePlan


def reduced_for(draft: Draft, gradient: Gradient, owner: Owner) -> Rows:
    """Return the reduced gradient on an owner's device; reduce it there if no synchronizer has done so.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS(), before="PSSynchronizer")
    >>> rows = reduced_for(draft, draft.step.item.gradients[0], draft.placement.owners[-1])
    >>> list(draft.editor[rows.values].input)
    ['weighted/replica0/0/kernel', 'weighted/replica1/0/kernel']
    """
    key = (*gradient.key, owner.name)
    if key not in draft.reduced:
        # Only the owners of the variable get the factors of all replicas.
        home, travels = draft.placement.owner_of[gradient.variable], gradient.key in draft.products.travelling
        draft.reduced[key] = draft.reduced[*gradient.key, home] if travels else _gather(draft, gradient, owner)
    return draft.reduced[key]


def reduce_all(draft: Draft, gradients: Sequence[Gradient], owner: Owner) -> None:
    """Bring gradients to one owner. Small ones travel from machine to machine together.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS(), before="PSSynchronizer")
    >>> reduce_all(draft, draft.step.item.gradients, draft.placement.owners[-1])
    >>> draft.reduced
    {('kernel', 0, 'server_localhost_CPU_0'): Rows(values='reduced/server_localhost_CPU_0/0/kernel', indices='')}
    """
    missing = [each for each in gradients if (*each.key, owner.name) not in draft.reduced]
    if packing.apart([owner.device, *(replica.device for replica in draft.active_replicas)]):
        for members in of_equal_types(draft, missing):
            if members[0].indices:
                _gather_rows(draft, members, owner)
                continue
            for bundle in packing.bundles(members, lambda each: _spec(draft, each)):
                if len(bundle) > 1:
                    _gather_packed(draft, bundle, owner)
    for gradient in gradients:
        reduced_for(draft, gradient, owner)


def of_equal_types(draft: Draft, gradients: Iterable[Gradient]) -> list[list[Gradient]]:
    """Return the gradients that may travel together: of one update and of equal types, in the order of the step.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> [len(members) for members in of_equal_types(draft, draft.step.item.gradients)]
    [1]
    """
    ordered = sorted(gradients, key=lambda each: draft.step.position[naming.node_of(each.values)])
    return list(grouped(ordered, lambda each: (each.occurrence, *draft.types_of(each))).values())


def _spec(draft: Draft, gradient: Gradient) -> tf.TensorSpec:
    return tf.TensorSpec(draft.spec(gradient.variable).shape, draft.type_of(gradient))


def _gather_rows(draft: Draft, gradients: Sequence[Gradient], owner: Owner) -> None:
    """Bring the rows of sparse gradients of equal types to an owner, together from each other machine."""
    values, indices = draft.types_of(gradients[0])
    shapes = [draft.step.variables[gradient.variable].shape[1:] for gradient in gradients]
    found: list[list[Rows]] = []
    for team in teams(draft):
        rows = [of_team(draft, gradient, owner, team) for gradient in gradients]
        if len(rows) > 1 and (packing.apart([team[0].device, owner.device]) or draft.stands(team[0])):
            name = f"{name_of(gradients[0], owner)}/packed/{team[0].prefix}"
            vectors = packing.packed_rows(draft, name, rows, (values, indices), team[0].host)
            rows = packing.unpacked_rows(draft, f"{name}/parts", vectors, shapes, (values, indices), owner.device)
        found.append(rows)
    for gradient, *parts in zip(gradients, *found, strict=True):
        draft.reduced[*gradient.key, owner.name] = _reduce(
            draft, name_of(gradient, owner), gradient, parts, owner.device
        )


def _gather_packed(draft: Draft, bundle: Sequence[Gradient], owner: Owner) -> None:
    """Bring dense gradients of one type to an owner, as one vector of each machine."""
    first, dtype = bundle[0], draft.type_of(bundle[0])
    name = f"reduced/{owner.name}/{first.occurrence}/packed/{naming.safe(first.variable)}"
    vectors = []
    for team in teams(draft):
        here, host = f"{name}/{team[0].prefix}", team[0].host
        sums = [of_team(draft, gradient, owner, team).values for gradient in bundle]
        vectors.append(packing.packed(draft, here, sums, dtype, host))
    total = draft.add_up(name, vectors, dtype, owner.device)
    shapes = [draft.step.variables[gradient.variable].shape for gradient in bundle]
    parts = packing.unpacked(draft, f"{name}/parts", total, shapes, dtype, owner.device)
    for gradient, part in zip(bundle, parts, strict=True):
        draft.reduced[*gradient.key, owner.name] = Rows(part)


def _gather(draft: Draft, gradient: Gradient, owner: Owner) -> Rows:
    """Bring a gradient of all active replicas to an owner: added up if dense, all rows if sparse."""
    name = name_of(gradient, owner)
    found = [of_team(draft, gradient, owner, team) for team in teams(draft) if _parts(draft, gradient, team)]
    if not gradient.indices and len(by_host(draft.active_replicas)) > 1:
        found = [Rows(_to_travel(draft, gradient, each.values, owner)) for each in found]
    return _reduce(draft, name, gradient, found, owner.device)


def _to_travel(draft: Draft, gradient: Gradient, value: str, owner: Owner) -> str:
    """Return a value that has few bytes where it travels, and keeps no larger one in memory while it waits for others.

    A cast to a larger type runs on the owner's device, as does the one back from the plan's `wire_dtype`. A slice along
    the first axis shares the memory of the whole gradient, of which other machines get the other slices. It stays as it
    is where machines own different numbers of parts: their graphs would differ, and be written apart.
    """
    source, variable = draft.editor[naming.node_of(value)], draft.step.variables[gradient.variable]
    while source.op == "Identity":
        source = draft.editor[naming.node_of(source.input[0])]
    name = f"{naming.node_of(value)}/{naming.safe(owner.name)}"
    if grows(source):
        return draft.editor.copy(source, name, source.input, owner.device).name
    plan, dtype = draft.placement.partitioner.plans.get(variable.part_of), draft.type_of(gradient)
    if plan and plan.gathered and (sent := tf.as_dtype(plan.wire_dtype)) != dtype:
        small = draft.editor.add("Cast", f"{name}/sent", [value], source.device, SrcT=dtype, DstT=sent)
        return draft.editor.add("Cast", name, [small], owner.device, SrcT=sent, DstT=dtype)
    if source.op != "Slice" or host_of(source.device) != host_of(owner.device) or not _own_alike(draft, plan):
        return value
    return draft.editor.add("DeepCopy", name, [value], source.device, T=dtype)


def _own_alike(draft: Draft, plan: VariablePlan | None) -> bool:
    """Whether each machine with replicas owns as many parts of a variable as each other one."""
    used = [shard.synchronizer for shard in plan.shards] if plan else []
    owned = Counter(DeviceSpec.parse(name).address for each in used for name in getattr(each, "destinations", ()))
    machines = {DeviceSpec.parse(replica.name).address for replica in draft.slicing.of_all[0]}
    return owned.keys() == machines and len(set(owned.values())) == 1


def name_of(gradient: Gradient, owner: Owner) -> str:
    """Return how the names of the nodes begin that reduce a gradient for an owner.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> name_of(draft.step.item.gradients[0], draft.placement.owners[-1])
    'reduced/server_localhost_CPU_0/0/kernel'
    """
    return f"reduced/{owner.name}/{gradient.occurrence}/{naming.safe(gradient.variable)}"


def of_team(draft: Draft, gradient: Gradient, owner: Owner, team: Sequence[Replica]) -> Rows:
    """Return a gradient of some replicas of one machine there.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS(), before="PSSynchronizer")
    >>> of_team(draft, draft.step.item.gradients[0], draft.placement.owners[-1], draft.placement.replicas[:1]).values
    'weighted/replica0/0/kernel'
    """
    name, parts = f"{name_of(gradient, owner)}/{team[0].prefix}", _parts(draft, gradient, team)
    return _reduce(draft, name, gradient, parts, team[0].host)


def _parts(draft: Draft, gradient: Gradient, team: Sequence[Replica]) -> list[Rows]:
    """Return the replicas' own gradients. One that replicas multiplied at once is the first one's."""
    keys = [(*gradient.key, replica.index) for replica in team]
    return [draft.local[key] for key in keys if key in draft.local]


def teams(draft: Draft) -> list[list[Replica]]:
    """Return the active replicas of each machine, which reduce first; on one machine, each replica alone.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> [[replica.index for replica in team] for team in teams(example_draft(PS()))]
    [[0], [1]]
    """
    teams = by_host(draft.active_replicas)
    return teams if len(teams) > 1 else [[replica] for replica in draft.active_replicas]


def at_host(draft: Draft, value: str, dtype: tf.DType, replica: Replica) -> str:
    """Return a value on a replica's machine. It crosses the network once for all replicas of that machine.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> _ = draft.editor.constant("rate", 0.1, tf.float32, "/job:worker/task:0/device:CPU:0")
    >>> here = Replica(0, "10.0.0.1:CPU:0", "/job:worker/task:0/device:CPU:0")
    >>> there = Replica(1, "10.0.0.2:CPU:0", "/job:worker/task:1/device:CPU:0")
    >>> at_host(draft, "rate", tf.float32, here), at_host(draft, "rate", tf.float32, there)
    ('rate', 'brought/job_worker/task_1/rate/output0')
    """
    # A replica that stands for others has the operation on the value's own machine, too, as the others have it.
    if host_of(draft.editor[naming.node_of(value)].device) == replica.host and not draft.stands(replica):
        return value
    host = replica.host.removesuffix("/device:CPU:0").strip("/").replace(":", "_")
    name = f"brought/{host}/{naming.label(value)}"
    if name not in draft.editor:
        draft.editor.add("Identity", name, [value], replica.host, T=dtype)
    return name


def _reduce(draft: Draft, name: str, gradient: Gradient, parts: Sequence[Rows], device: str) -> Rows:
    dtype, *of_indices = draft.types_of(gradient)
    if not of_indices:
        return Rows(draft.add_up(name, [part.values for part in parts], dtype, device))
    if len(parts) == 1:
        return parts[0]
    if gradient.rows == ALIKE:
        values = draft.add_up(f"{name}/values", [part.values for part in parts], dtype, device)
        return Rows(values, parts[0].indices)
    rows = Rows(
        draft.join(f"{name}/values", [part.values for part in parts], dtype, device),
        draft.join(f"{name}/indices", [part.indices for part in parts], of_indices[0], device),
    )
    if gradient.rows == UNIQUE:
        shape = draft.step.variables[gradient.variable].shape[1:]
        specs = {rows.values: tf.TensorSpec((None, *shape), dtype), rows.indices: tf.TensorSpec((None,), of_indices[0])}
        return Rows(*draft.editor.trace(f"{name}/merged", merged, specs, device))
    return rows


def merged(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return each row once, in the order of first occurrence; rows with one index are added.

    >>> values, indices = merged(tf.constant([[1.0], [2.0], [3.0]]), tf.constant([7, 5, 7]))
    >>> values.numpy().tolist(), indices.numpy().tolist()
    ([[4.0], [2.0]], [7, 5])
    """
    rows, places = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, places, tf.size(rows)), rows
