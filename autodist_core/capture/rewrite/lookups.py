"""Lookups in a variable that is read whole, made to take their rows from the variable itself."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_LOOKING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}


def fuse_lookups(graph_def: Any) -> None:
    """Let a lookup take its rows from the variable itself, at the time at which the captured step read the variable.

    TensorFlow copies a variable that is written by rows whenever it is read whole, once per replica and step.
    """
    position = {node.name: index for index, node in enumerate(graph_def.node)}

    def producer(name: str) -> Any:
        node = graph_def.node[position[name.partition(":")[0]]]
        return producer(node.input[0]) if node.op == "Identity" else node

    for index, node in enumerate(graph_def.node):
        if node.op != "GatherV2" or node.attr["batch_dims"].i:
            continue
        read, axis = producer(node.input[0]), producer(node.input[2])
        if read.op != "ReadVariableOp" or axis.op != "Const" or tf.make_ndarray(axis.attr["value"].tensor).item() != 0:
            continue
        between = graph_def.node[position[read.name] + 1 : index]
        if any(read.input[0] in other.input and other.op not in _LOOKING for other in between):
            continue
        types = {"dtype": node.attr["Tparams"].type, "Tindices": node.attr["Tindices"].type}
        controls = [name for name in [*node.input, *read.input] if name.startswith("^")]
        node.op = "ResourceGather"
        node.input[:] = [read.input[0], node.input[1], *dict.fromkeys(controls)]
        for key in ("Tparams", "Taxis"):
            del node.attr[key]
        for key, value in types.items():
            node.attr[key].type = value
        node.attr["validate_indices"].b = True
