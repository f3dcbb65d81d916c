"""Bring a gradient of all replicas to one owner: added up if dense, all rows if sparse.

In: each replica's own gradient, `draft.local`. Out: the reduced gradient on the owner's device, `draft.reduced`. For a
dense gradient of two replicas::

    reduced/memory/0/kernel = AddN(replica0/gradient, replica1/gradient)

Over several machines, the small dense gradients of an owner travel together, and are added up together.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from autodist_core.kernel.analysis.products import Product
from autodist_core.kernel.draft import Draft, Rows, gradient_type, output_type_of_indices
from autodist_core.kernel.passes import packing
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import ALIKE, UNIQUE, Gradient


def reduced_for(draft: Draft, gradient: Gradient, owner: Owner) -> Rows:
    """Return the reduced gradient on an owner's device; reduce it there if no synchronizer has done so.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS(), before="PSSynchronizer")
    >>> rows = reduced_for(draft, draft.step.item.gradients[0], draft.placement.owners[-1])
    >>> list(draft.editor[rows.values].input)
    ['weighted/replica0/0/kernel', 'weighted/replica1/0/kernel']
    """
    key = (gradient.variable, gradient.occurrence, owner.name)
    if key not in draft.reduced:
        draft.reduced[key] = _gather(draft, gradient, owner)
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
    travelling: dict[int, list[Gradient]] = {}
    for gradient in sorted(gradients, key=lambda each: draft.step.position[naming.node_of(each.values)]):
        if gradient.indices or (gradient.variable, gradient.occurrence) in draft.gradient_products:
            reduced_for(draft, gradient, owner)
        else:
            travelling.setdefault(gradient.occurrence, []).append(gradient)
    over_hosts = packing.apart([owner.device, *(replica.device for replica in draft.active_replicas)])

    def spec_of(gradient: Gradient) -> tf.TensorSpec:
        return tf.TensorSpec(draft.spec(gradient.variable).shape, gradient_type(draft.step, gradient))

    for members in travelling.values():
        for bundle in packing.bundles(members, spec_of) if over_hosts else [[gradient] for gradient in members]:
            if len(bundle) == 1:
                reduced_for(draft, bundle[0], owner)
            else:
                _gather_packed(draft, bundle, owner)


def _gather_packed(draft: Draft, bundle: Sequence[Gradient], owner: Owner) -> None:
    """Bring dense gradients of one type to an owner, as one vector of each machine."""
    first, dtype = bundle[0], gradient_type(draft.step, bundle[0])
    name = f"reduced/{owner.name}/{first.occurrence}/packed/{naming.safe(first.variable)}"
    vectors = []
    for team in _teams(draft):
        here, host = f"{name}/{team[0].prefix}", team[0].host
        sums = [
            draft.add_up(
                f"{here}/{naming.safe(gradient.variable)}",
                [draft.local[gradient.variable, gradient.occurrence, replica.index].values for replica in team],
                dtype, host,
            )
            for gradient in bundle
        ]
        vectors.append(packing.packed(draft, here, sums, dtype, host))
    total = draft.add_up(name, vectors, dtype, owner.device)
    shapes = [draft.step.variables[gradient.variable].shape for gradient in bundle]
    parts = packing.unpacked(draft, f"{name}/parts", total, shapes, dtype, owner.device)
    for gradient, part in zip(bundle, parts, strict=True):
        draft.reduced[gradient.variable, gradient.occurrence, owner.name] = Rows(part)


def _gather(draft: Draft, gradient: Gradient, owner: Owner) -> Rows:
    """Bring a gradient of all active replicas to an owner: added up if dense, all rows if sparse."""
    name = f"reduced/{owner.name}/{gradient.occurrence}/{naming.safe(gradient.variable)}"
    product = draft.gradient_products.get((gradient.variable, gradient.occurrence))
    if product:
        return Rows(_multiply(draft, name, product, owner))
    found = []
    for team in _teams(draft):
        parts = [draft.local[gradient.variable, gradient.occurrence, replica.index] for replica in team]
        found.append(_reduce(draft, f"{name}/{team[0].prefix}", gradient, parts, team[0].host))
    return _reduce(draft, name, gradient, found, owner.device)


def _teams(draft: Draft) -> list[list[Replica]]:
    """Return the active replicas of each machine, which reduce first; on one machine, each replica alone."""
    by_host: dict[str, list[Replica]] = {}
    for replica in draft.active_replicas:
        by_host.setdefault(replica.host, []).append(replica)
    return list(by_host.values()) if len(by_host) > 1 else [[replica] for replica in draft.active_replicas]


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
    if host_of(draft.editor[naming.node_of(value)].device) == replica.host and not (draft.stands_for and replica.index):
        return value
    host = replica.host.removesuffix("/device:CPU:0").strip("/").replace(":", "_")
    name = f"brought/{host}/{naming.label(value)}"
    if name not in draft.editor:
        draft.editor.add("Identity", name, [value], replica.host, T=dtype)
    return name


def _reduce(draft: Draft, name: str, gradient: Gradient, parts: Sequence[Rows], device: str) -> Rows:
    dtype = gradient_type(draft.step, gradient)
    if not gradient.indices:
        return Rows(draft.add_up(name, [part.values for part in parts], dtype, device))
    if len(parts) == 1:
        return parts[0]
    ids = output_type_of_indices(draft.step, gradient)
    if gradient.rows == ALIKE:
        values = draft.add_up(f"{name}/values", [part.values for part in parts], dtype, device)
        return Rows(values, parts[0].indices)
    rows = Rows(
        draft.join(f"{name}/values", [part.values for part in parts], dtype, device),
        draft.join(f"{name}/indices", [part.indices for part in parts], ids, device),
    )
    if gradient.rows == UNIQUE:
        shape = draft.step.variables[gradient.variable].shape[1:]
        specs = {rows.values: tf.TensorSpec((None, *shape), dtype), rows.indices: tf.TensorSpec((None,), ids)}
        return Rows(*draft.editor.trace(f"{name}/merged", _merged, specs, device))
    return rows


def _multiply(draft: Draft, name: str, product: Product, owner: Owner) -> str:
    dtype = tf.as_dtype(product.node.attr["T"].type)
    factors = [
        draft.stacked(naming.canonical(factor), dtype, owner.device) for factor in (product.left, product.right)
    ]
    return draft.editor.copy(product.node, name, factors, owner.device).name


def _merged(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return each row once, in the order of first occurrence; rows with one index are added."""
    rows, places = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, places, tf.size(rows)), rows
