"""Multiply the gradient of a shard on its owner, of the factors of all machines.

In: the factors of a gradient that is a product with a row for each example (`analysis/factored.py`), on each replica.
Out: the shard's reduced gradient on its owner. For a kernel in two shards along its first axis, on two machines::

    reduced/owner/0/kernel/part_1 = MatMul([x0, x1][:, half:]', [d0, d1])

No replica computes the gradient of the whole kernel. Each owner computes its shard's, for the whole batch. Together
they compute what the replicas would have. The two factors travel side by side as one matrix, in one message for each
pair of machines. A factor that other gradients have too, or other owners on a machine, goes there once, by itself.
"""

from collections import defaultdict
from collections.abc import Sequence, Set

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.passes.synchronizer.reduction import at_host, name_of, teams
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient, Variable


def shared(draft: Draft) -> Set[str]:
    """Return the travelling factors that gradients of several variables have.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> shared(example_draft(PS()))
    set()
    """
    users = defaultdict[str, set[str]](set)
    for (name, _), product in draft.products.travelling.items():
        for factor in (product.left, product.right):
            users[naming.canonical(factor)].add(draft.step.variables[name].part_of or name)
    return {factor for factor, variables in users.items() if len(variables) > 1}


def multiplied(draft: Draft, gradient: Gradient, owner: Owner, apart: Set[str]) -> Rows:
    """Return the reduced gradient of a shard, whose factors travel; those `apart` each in a message of its own.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> draft.products.travelling  # one machine needs no factors
    {}
    """
    shard, product = draft.step.variables[gradient.variable], draft.products.travelling[gradient.key]
    dtype, name = tf.as_dtype(product.node.attr["T"].type), name_of(gradient, owner)
    here = [replica for replica in draft.placement.replicas if replica.host == host_of(owner.device)]
    factors = [naming.canonical(factor) for factor in (product.left, product.right)]
    pairs = []
    for team in teams(draft):
        pair = [draft.stacked(factor, dtype, team) for factor in factors]
        pair[shard.axis] = _columns(draft, pair[shard.axis], shard, dtype, team[0])
        if len(here) == 1 and apart.isdisjoint(factors):
            pair = _side_by_side(draft, f"{name}/{team[0].prefix}", pair, shard, dtype, team[0], here[0])
        elif here:
            pair = [at_host(draft, each, dtype, here[0]) for each in pair]
        pairs.append(pair)
    rows = [draft.join(f"{name}/rows_{axis}", [pair[axis] for pair in pairs], dtype, owner.device) for axis in range(2)]
    return Rows(draft.editor.copy(product.node, name, rows, owner.device).name)


def _side_by_side(
    draft: Draft, name: str, pair: Sequence[str], shard: Variable, dtype: tf.DType, source: Replica, target: Replica
) -> list[str]:
    """Return both factors on another machine, where they have come as one matrix."""
    if source.host == target.host and not draft.stands(target):
        return list(pair)
    matrix = draft.join(f"{name}/factors", pair, dtype, source.device, axis=1)
    return packing.cut(draft, f"{name}/apart", matrix, shard.shape, dtype, target.host, along=1)


def _columns(draft: Draft, rows: str, shard: Variable, dtype: tf.DType, replica: Replica) -> str:
    """Return those columns of a machine's rows that belong to a shard. Shards of several variables may share them."""
    name = f"columns/{replica.prefix}/{naming.label(rows)}/{shard.offset}_{shard.shape[shard.axis]}"
    if name not in draft.editor:
        bounds = [
            draft.editor.constant(f"{name}/{what}", bound, tf.int32, replica.host)
            for what, bound in (("begin", [0, shard.offset]), ("size", [-1, shard.shape[shard.axis]]))
        ]
        draft.editor.add("Slice", name, [rows, *bounds], replica.device, T=dtype, Index=tf.int32)
    return name
