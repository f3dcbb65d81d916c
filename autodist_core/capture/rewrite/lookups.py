"""Let lookups take their rows from the variable itself, in place of a tensor with all of its rows.

In: a captured graph. Out: the changed graph. For a lookup of `ids`, and for one of a layer in mixed precision::

    GatherV2(ReadVariableOp(table), ids, axis=0)        ->  ResourceGather(table, ids)
    GatherV2(Cast(ReadVariableOp(table)), ids, axis=0)  ->  Cast(ResourceGather(table, ids))

TensorFlow copies a variable that is written by rows whenever the whole variable is read: once per replica and step. A
cast of the whole table takes as long, and over machines the whole table would travel.
"""

from typing import Any

import tensorflow as tf

from autodist_core.step import naming
from autodist_core.step.editor import Editor

_LOOKING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


def fuse_lookups(graph: Editor) -> Editor:
    """Change each lookup along the first axis of a read variable into a `ResourceGather`.

    A lookup stays as it is if the step may write the variable between the read and the lookup.

    >>> table = tf.Variable(tf.ones([5, 2]))
    >>> read = lambda: tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float32)
    >>> lookup = tf.function(lambda ids: tf.gather(tf.cast(read(), tf.float16), ids))
    >>> graph = Editor.of(lookup.get_concrete_function(tf.TensorSpec([None], tf.int32)).graph.as_graph_def())
    >>> [node.op for node in fuse_lookups(graph) if "Gather" in node.name and node.op != "Const"]
    ['ResourceGather', 'Cast']
    """
    nodes, found = list(graph), graph.empty()
    position = {node.name: index for index, node in enumerate(nodes)}

    def producer(name: str) -> Any:
        node = graph[naming.node_of(name)]
        return producer(node.input[0]) if node.op == "Identity" else node

    def is_fused(node: Any, read: Any) -> bool:
        axis = producer(node.input[2])
        if read.op != "ReadVariableOp" or axis.op != "Const" or tf.make_ndarray(axis.attr["value"].tensor).item() != 0:
            return False
        between = nodes[position[read.name] + 1 : position[node.name]]
        return not any(read.input[0] in other.input and other.op not in _LOOKING for other in between)

    for node in nodes:
        looks_up = node.op == "GatherV2" and not node.attr["batch_dims"].i
        whole = producer(node.input[0]) if looks_up else node
        cast = whole if whole.op == "Cast" else None
        read = producer(cast.input[0]) if looks_up and cast is not None else whole
        if not looks_up or not is_fused(node, read):
            found.merge([node])
            continue
        controls = dict.fromkeys(name for name in [*node.input, *read.input] if naming.is_control(name))
        rows = node.name if cast is None else f"{node.name}/rows"
        found.copy_captured(node, rows, [read.input[0], node.input[1], *controls])
        found.change(
            rows, "ResourceGather", drop=("Tparams", "Taxis"), dtype=tf.as_dtype(read.attr["dtype"].type),
            Tindices=tf.as_dtype(node.attr["Tindices"].type), validate_indices=True,
        )
        if cast is not None:
            found.copy_captured(node, node.name, [rows])
            types = {key: tf.as_dtype(cast.attr[key].type) for key in ("SrcT", "DstT")}
            found.change(node.name, "Cast", drop=("Tparams", "Taxis", "Tindices", "batch_dims"), **types)
    return found
