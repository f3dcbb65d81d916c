"""Replicator: copy the compute part of a captured step once for each replica.

In: the captured step. Out: the copies, and each replica's own gradients, `draft.local`. For two replicas::

    replica0/MatMul = MatMul(replica0/x, variable/kernel)
    replica1/MatMul = MatMul(replica1/x, variable/kernel)

Every replica computes on its mirrors, as captured, with four changes. Replicas that share memory multiply the rows of
large layers at once (`products.py`). A lookup in a table that the replica has no copy of runs on the server. Values
that are marked as sums over the replicas are summed, the largest is taken of those that are marked as maxima, and rows
that are marked as those of the whole batch are joined. Every replica draws random numbers from a stream of its own
(`random_streams.py`).
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.kernel.analysis.gradient_flow import compute_of
from autodist_core.kernel.analysis.products import Product
from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.placement.placement import Copy, Replica
from autodist_core.kernel.random_streams import take_own_stream
from autodist_core.step import naming
from autodist_core.step.casts import shrinks
from autodist_core.step.graph_item import Gradient, Table

_LOOKUPS = {"GatherV2", "ResourceGather"}


class Replicator(Kernel):
    """Adds one copy of compute for every active replica.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "Replicator", "MatMul")
    'MatMul: 0 -> 4'
    """

    provides = ("compute", "local", "initializers")

    def apply(self, draft: Draft) -> None:
        """Copy compute, then multiply each replica's gradients by its share of the batch."""
        gradients = [name for gradient in draft.step.item.gradients for name in draft.sources(gradient)]
        later, handed_back = draft.placement.after_update(draft.step), draft.placement.handed_back(draft.step)
        names = compute_of(draft.step, gradients, later, handed_back)
        draft.compute.update(names)
        for replica in draft.active_replicas:
            for name in names:
                copy_node(draft, replica, name, {})
        combined = draft.crossing
        for name in draft.step.in_order(set(names) & combined.keys()):
            _replace(draft, name, combined[name])
        for replica in draft.active_replicas:
            for gradient in draft.step.item.gradients:
                product = draft.products.gradients.get(gradient.key)
                if gradient.key in draft.products.travelling:
                    continue
                if not product:
                    draft.local[*gradient.key, replica.index] = _weighted(draft, replica, gradient)
                elif replica is draft.together(replica)[0]:
                    draft.local[*gradient.key, replica.index] = _multiplied(draft, replica, gradient, product)
        for host in dict.fromkeys(replica.host for replica in draft.active_replicas):
            for table in draft.step.item.tables:
                _add_table(draft, table, host)


def copy_node(draft: Draft, replica: Replica, name: str, returned: Mapping[str, str]) -> str:
    """Add a replica's copy of a captured node of compute, and return the name of the copy.

    `returned` has the values that the update hands back, by the captured tensor's name.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> copy = draft.editor[copy_node(draft, draft.active_replicas[1], "matmul/ReadVariableOp", {})]
    >>> copy.name, list(copy.input), copy.device
    ('replica1/matmul/ReadVariableOp', ['variable/kernel.replica1'], '/device:CPU:1')
    """
    step = draft.step
    node = step.nodes[name]
    if name in (step.item.examples, step.item.total):
        source = draft.examples(replica) if name == step.item.examples else draft.total()
        return draft.editor.add("Identity", replica.copy_of(name), [source], replica.host, T=tf.float64)
    if name == step.item.replica:
        return draft.editor.constant(replica.copy_of(name), replica.number, tf.int32, replica.host)
    if draft.slicing.sizes and (shape := step.rows.get(name)):
        return _of_known_size(draft, replica, node, shape)
    if name in draft.products.weights and len(draft.together(replica)) > 1:
        dtype, rows = tf.as_dtype(node.attr["T"].type), _rows_of(draft, replica, name)
        return draft.editor.add("Identity", replica.copy_of(name), [rows], replica.device, T=dtype)
    inputs = [
        renamed for source in node.input
        if (renamed := returned.get(source) or _source(draft, replica, source)) is not None
    ]
    order = draft.at(name) if name in step.touches else None
    copy = draft.editor.copy(node, replica.copy_of(name), inputs, _device(draft, replica, node), order).name
    if name in step.draws:
        take_own_stream(draft, copy, replica, name)
    if name in step.side_effects or name in step.writers:
        draft.targets.append(copy)
    return copy


def _of_known_size(draft: Draft, replica: Replica, node: node_def_pb2.NodeDef, shape: tuple[int | None, ...]) -> str:
    """Add a placeholder and a tensor of known shape: TensorFlow does not rely on the shape of a placeholder."""
    name, dtype = replica.copy_of(node.name), tf.as_dtype(node.attr["dtype"].type)
    fed = draft.editor.copy(node, f"{name}/fed", [], replica.device)
    known = tf.TensorShape([draft.slicing.size_of(replica), *shape[1:]])
    return draft.editor.add("EnsureShape", name, [fed.name], replica.device, T=dtype, shape=known)


def _rows_of(draft: Draft, replica: Replica, name: str) -> str:
    """Return a replica's rows of a product over the rows of all replicas that multiply at once with it."""
    node, members = draft.step.nodes[name], draft.together(replica)
    first = members[0]
    label = f"at_once/{first.prefix}/{name}"
    if label not in draft.editor:
        dtype = tf.as_dtype(node.attr["T"].type)
        left, right = (naming.canonical(source) for source in naming.data_inputs(node))
        stacked = draft.stacked(left, dtype, members)
        draft.editor.copy(node, label, [stacked, first.copy_of(right)], first.device)
        tensors = [label, *(member.copy_of(left) for member in members)]
        draft.editor.trace(
            f"{label}/rows", lambda product, *rows: tf.split(product, [tf.shape(each)[0] for each in rows]),
            dict.fromkeys(tensors, tf.TensorSpec((None, None), dtype)), first.device,
        )
    return naming.tensor(f"{label}/rows/split", members.index(replica))


def _multiplied(draft: Draft, replica: Replica, gradient: Gradient, product: Product) -> Rows:
    """Return a gradient of all replicas that multiply at once with this one: one product over their rows."""
    name = f"at_once/{replica.prefix}/{gradient.occurrence}/{naming.safe(gradient.variable)}"
    dtype, members = tf.as_dtype(product.node.attr["T"].type), draft.together(replica)
    factors = [draft.stacked(naming.canonical(each), dtype, members) for each in (product.left, product.right)]
    return Rows(draft.editor.copy(product.node, name, factors, replica.device).name)


def _source(draft: Draft, replica: Replica, source: str) -> str | None:
    """Return the input of a replica's copy of a node; None for a control edge that is left out."""
    step = draft.step
    name, output = naming.split(source)
    if name in step.handle_of:
        if output < 0:
            return None
        variable = step.handle_of[name]
        return draft.handle(variable, _copy_for(draft, variable, replica))
    if name in draft.step.tables:
        return None if output < 0 else _table(draft, replica.host, name)
    target = replica.copy_of(name)
    if output >= 0:
        return naming.tensor(target, output)
    # The kernel Order adds control edges for reads and writes of variables. A captured control edge stays
    # if both ends are in this replica's copy of compute.
    return f"^{target}" if target in draft.editor and not step.is_update(name) else None


def _copy_for(draft: Draft, variable: str, replica: Replica) -> Copy:
    """Return the copy of a variable that a replica's compute uses: its mirror.

    Of a variable with the aggregation `sum`, only the first replica has the sum between steps. A step that reads such
    a variable, and does not write it, reads the first replica's copy on every replica.
    """
    summed = draft.step.variables[variable].aggregation == "sum" and variable not in draft.step.written_by_compute
    own = not summed or draft.placement.loose is not None
    return draft.placement.mirror(variable, replica if own else draft.placement.replicas[0])


def _device(draft: Draft, replica: Replica, node: node_def_pb2.NodeDef) -> str:
    """Return a node's device: an operation on a variable, or a lookup in it, runs on the device of the variable."""
    step = draft.step
    # A read value that a layer casts to a smaller type travels in that type. Rows travel as `LookupsTogether` has them.
    read = step.nodes[naming.node_of(node.input[0])] if shrinks(node) else node
    touched = step.touches.get(read.name if read.op == "ReadVariableOp" else node.name)
    if touched:
        return _copy_for(draft, touched[0].variable, replica).device
    if any(naming.node_of(source) in draft.step.tables for source in naming.data_inputs(node)):
        return replica.host
    table = table_of_lookup(draft, node.name)
    return draft.placement.mirror(table, replica).device if table else replica.device


def table_of_lookup(draft: Draft, name: str) -> str | None:
    """Return the table in which a captured node looks rows up, if the table is on a server only.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> table_of_lookup(example_draft(PS()), "matmul") is None
    True
    """
    step, node = draft.step, draft.step.nodes[name]
    if node.op not in _LOOKUPS:
        return None
    rows = step.touches.get(naming.node_of(node.input[0]), ()) or step.touches.get(name, ())
    return rows[0].variable if rows and rows[0].variable in draft.placement.remote_rows else None


def _replace(draft: Draft, name: str, combine: Callable[[str, Sequence[str], tf.DType, str], str]) -> None:
    """Let the copies of a marker have the value that `combine` makes of what the replicas gave them."""
    dtype = tf.as_dtype(draft.step.nodes[name].attr["T"].type)
    parts = [draft.editor[replica.copy_of(name)].input[0] for replica in draft.active_replicas]
    total = combine(f"whole/{name}", parts, dtype, draft.active_replicas[0].device)
    for replica in draft.active_replicas:
        _, *rest = draft.editor[replica.copy_of(name)].input
        draft.editor.change(replica.copy_of(name), inputs=[total, *rest])


def _weighted(draft: Draft, replica: Replica, gradient: Gradient) -> Rows:
    """Return a replica's gradient, times the replica's share unless the loss was weighted by the share already.

    Of a gradient that is the same on all replicas, the first replica's counts, and the others add zeros.
    """
    values = replica.copy_of(gradient.values.removesuffix(":0"))
    indices = replica.copy_of(gradient.indices.removesuffix(":0")) if gradient.indices else ""
    if gradient.alike and replica is not draft.active_replicas[0]:
        dtype = draft.type_of(gradient)
        name = f"alike/{replica.prefix}/{gradient.occurrence}/{naming.safe(gradient.variable)}"
        return Rows(draft.editor.add("ZerosLike", name, [values], replica.device, T=dtype), indices)
    if gradient.weighted or (len(draft.active_replicas) == 1 and draft.placement.loose is None):
        return Rows(values, indices)
    dtype = draft.type_of(gradient)
    name = f"weighted/{replica.prefix}/{gradient.occurrence}/{naming.safe(gradient.variable)}"
    scaled = draft.editor.add("Mul", name, [values, draft.share(replica, dtype)], replica.device, T=dtype)
    return Rows(scaled, indices)


def _table(draft: Draft, host: str, handle: str) -> str:
    """Return the name of a lookup table on one machine. Each machine has its own, with equal content."""
    return f"table/{draft.placement.hosts.index(host)}/{handle}"


def _add_table(draft: Draft, table: Table, host: str) -> None:
    nodes = draft.step.nodes
    keys, values = nodes[table.keys], nodes[table.values]
    types = {"key_dtype": keys.attr["dtype"].type, "value_dtype": values.attr["dtype"].type}
    types = {key: tf.as_dtype(value) for key, value in types.items()}
    name = _table(draft, host, table.handle)
    draft.editor.add("HashTableV2", name, device=host, shared_name=name, **types)
    for side, node in (("keys", keys), ("values", values)):
        draft.editor.copy(node, f"{name}/{side}", [], host)
    draft.initializers.append(draft.editor.add(
        "InitializeTableV2", f"{name}/initialize", [name, f"{name}/keys", f"{name}/values"], host,
        Tkey=types["key_dtype"], Tval=types["value_dtype"],
    ))
