"""Let lookups take their rows from the variable itself, in place of a tensor with all of its rows.

In: a captured graph. Out: the same graph, changed in place. For a lookup of `ids`::

    GatherV2(ReadVariableOp(table), ids, axis=0)  ->  ResourceGather(table, ids)

TensorFlow copies a variable that is written by rows whenever the whole variable is read: once per replica and step.
"""

from typing import Any

import tensorflow as tf

from autodist_core.step import naming
from autodist_core.step.editor import Editor

_LOOKING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


def fuse_lookups(graph: Editor) -> None:
    """Change each lookup along the first axis of a read variable into a `ResourceGather`.

    A lookup stays as it is if the step may write the variable between the read and the lookup.

    >>> table = tf.Variable(tf.ones([5, 2]))
    >>> read = lambda: tf.raw_ops.ReadVariableOp(resource=table.handle, dtype=tf.float32)
    >>> lookup = tf.function(lambda ids: tf.gather(read(), ids))
    >>> graph = Editor.of(lookup.get_concrete_function(tf.TensorSpec([None], tf.int32)).graph.as_graph_def())
    >>> fuse_lookups(graph)
    >>> sorted(node.op for node in graph if "Gather" in node.op)
    ['ResourceGather']
    """
    nodes = list(graph)
    position = {node.name: index for index, node in enumerate(nodes)}

    def producer(name: str) -> Any:
        node = graph[naming.node_of(name)]
        return producer(node.input[0]) if node.op == "Identity" else node

    for index, node in enumerate(nodes):
        if node.op != "GatherV2" or node.attr["batch_dims"].i:
            continue
        read, axis = producer(node.input[0]), producer(node.input[2])
        if read.op != "ReadVariableOp" or axis.op != "Const" or tf.make_ndarray(axis.attr["value"].tensor).item() != 0:
            continue
        between = nodes[position[read.name] + 1 : index]
        if any(read.input[0] in other.input and other.op not in _LOOKING for other in between):
            continue
        controls = dict.fromkeys(name for name in [*node.input, *read.input] if naming.is_control(name))
        graph.change(
            node.name, "ResourceGather", [read.input[0], node.input[1], *controls], drop=("Tparams", "Taxis"),
            dtype=tf.as_dtype(node.attr["Tparams"].type), Tindices=tf.as_dtype(node.attr["Tindices"].type),
            validate_indices=True,
        )
