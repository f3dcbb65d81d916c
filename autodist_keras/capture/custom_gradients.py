"""TensorFlow keeps every custom gradient for ever, and with it the graph, and all variables that the graph captured."""

from __future__ import annotations

from typing import Any

from autodist_core.seams.table import GRADIENT_REGISTRY


def forget(graph: Any) -> int:
    """Let TensorFlow forget the custom gradients of a graph through which no gradient will be taken any more.

    Returns how many there were.

    Those of the functions that it calls stay: another graph may call these, too.
    """
    # There is no public way to take one back.
    registered = GRADIENT_REGISTRY.get()._registry
    names = []
    for operation in graph.get_operations():
        if operation.type == "IdentityN":
            name = operation.node_def.attr["_gradient_op_type"].s.decode()
            if name.startswith("CustomGradient-"):
                names.append(name)
                registered.pop(name, None)
    return len(names)
