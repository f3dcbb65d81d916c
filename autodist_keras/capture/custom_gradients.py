"""TensorFlow keeps every custom gradient for ever, and with it the graph, and all variables that the graph captured."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import ops


def forget(graph: Any) -> None:
    """Let TensorFlow forget the custom gradients of a graph through which no gradient will be taken any more.

    Those of the functions that it calls stay: another graph may call these, too.
    """
    for operation in graph.get_operations():
        if operation.type == "IdentityN":
            name = operation.node_def.attr["_gradient_op_type"].s.decode()
            if name.startswith("CustomGradient-"):
                # There is no public way to take one back.
                ops.gradient_registry._registry.pop(name, None)
