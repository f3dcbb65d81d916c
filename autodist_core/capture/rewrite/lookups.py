"""Lookups in a variable that is read whole, made to take their rows from the variable itself."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from autodist_core.step import naming
from autodist_core.step.editor import Editor

_LOOKING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


def fuse_lookups(graph: Editor) -> None:
    """Let a lookup take its rows from the variable itself, at the time at which the captured step read the variable.

    TensorFlow copies a variable that is written by rows whenever it is read whole, once per replica and step.
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
