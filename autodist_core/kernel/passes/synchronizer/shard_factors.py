"""Multiply the gradient of a shard on its owner, of the factors of all machines.

In: the factors of a gradient that is a product with a row for each example (`analysis/factored.py`), on each replica.
Out: the shard's reduced gradient on its owner. For a kernel in two shards along its first axis, on two machines::

    reduced/owner/0/kernel/part_1 = MatMul([x0, x1][:, half:]', [d0, d1])

No replica computes the gradient of the whole kernel. Each owner computes its shard's, for the whole batch. Together
they compute what the replicas would have. The factor that is not cut goes to each machine once.
"""

import tensorflow as tf

from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.passes.synchronizer.reduction import at_host, name_of, teams
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient, Variable


def multiplied(draft: Draft, gradient: Gradient, owner: Owner) -> Rows:
    """Return the reduced gradient of a shard, whose factors travel.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> draft.products.travelling  # one machine needs no factors
    {}
    """
    shard, product = draft.step.variables[gradient.variable], draft.products.travelling[gradient.key]
    dtype, name = tf.as_dtype(product.node.attr["T"].type), name_of(gradient, owner)
    here = [replica for replica in draft.placement.replicas if replica.host == host_of(owner.device)]
    factors = []
    for axis, factor in enumerate((product.left, product.right)):
        rows = [draft.stacked(naming.canonical(factor), dtype, team) for team in teams(draft)]
        if axis == shard.axis:
            rows = [_columns(draft, each, shard, dtype, team[0]) for each, team in zip(rows, teams(draft), strict=True)]
        rows = [at_host(draft, each, dtype, here[0]) for each in rows] if here else rows
        factors.append(draft.join(f"{name}/rows_{axis}", rows, dtype, owner.device))
    return Rows(draft.editor.copy(product.node, name, factors, owner.device).name)


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
