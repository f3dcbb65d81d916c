"""Let sums and means over a replica's examples be those of the whole batch, before anything is computed from them.

In: a captured graph, and the operations in `totals` of a traced step. Out: the graph with a marker behind each of them.
The kernels add the markers' values up over the replicas::

    Sum(mask)    ->  Identity(Sum(mask))      the sum over the whole batch, on every replica
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from autodist_core.step.editor import Editor


def take_totals(graph: Editor, totals: Iterable[Any]) -> tuple[Editor, tuple[str, ...]]:
    """Return the graph with a marker for each of these operations, and the names of the markers.

    >>> total = tf.function(lambda x: tf.reduce_sum(x), autograph=False)
    >>> function = total.get_concrete_function(tf.TensorSpec([None], "float32"))
    >>> totals = [operation for operation in function.graph.get_operations() if operation.type == "Sum"]
    >>> graph, markers = take_totals(Editor.of(function.graph.as_graph_def()), totals)
    >>> markers, list(graph["Sum"].input)
    (('Sum',), ['Sum/own'])
    """
    names = {operation.name for operation in totals}
    if not names:
        return graph, ()
    changed = graph.empty()
    for node in graph:
        own = f"{node.name}/own" if node.name in names else node.name
        changed.copy_captured(node, own, node.input)
        if node.name in names:
            kind = node.attr["DstT" if node.op == "Cast" else "T"].type
            changed.add("Identity", node.name, [own], T=tf.as_dtype(kind))
    return changed, tuple(names)
