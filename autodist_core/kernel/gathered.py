"""Let the replicas of a distributed graph gather their rows from arrays that each machine keeps.

In: a finished `DistributedGraph`, its replicas, and the names of the arrays on the machines. Out: the same graph, but
what is fed are row numbers. In place of the placeholder of each replica's slice is::

    replica1/x = ResourceGather(data/replica1/kept0_0, feed/replica1/rows)

The kernels know nothing of this. The node that gathers has the name of the placeholder, so whatever read the
placeholder reads the gathered rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from autodist_core.kernel.pipeline import DistributedGraph
from autodist_core.kernel.placement.placement import Replica
from autodist_core.step.editor import Editor


def gathered(graph: DistributedGraph, replicas: Sequence[Replica], kept: Sequence[str]) -> DistributedGraph:
    """Return a graph that is fed the row numbers of each replica. `kept` names the array of each captured input.

    The feeds of the graph are those of the first of these replicas.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.kernel.pipeline import build
    >>> from autodist_core.strategy import PS
    >>> placement = example_placement(PS())
    >>> graph = gathered(build(example_step(), placement), placement.replicas, ["kept0_0"])
    >>> graph.feeds, {node.name: list(node.input) for node in graph.graph_def.node}["replica1/x"]
    ((('feed/replica0/rows',), ('feed/replica1/rows',)), ['data/replica1/kept0_0', 'feed/replica1/rows'])
    """
    if not graph.inputs:
        return graph
    editor, feeds = Editor.of(graph.graph_def), []
    for replica, names in zip(replicas, graph.feeds, strict=False):
        rows, host = f"feed/{replica.prefix}/rows", replica.host
        editor.add("Placeholder", rows, device=host, dtype=tf.int64, shape=tf.TensorShape([None]))
        feeds.append((rows,))
        for index, name in zip(graph.inputs, names, strict=True):
            dtype = tf.as_dtype(editor[name].attr["dtype"].type)
            shape = tf.TensorShape(editor[name].attr["shape"].shape)
            shape = tf.TensorShape([None, *shape[1:]]) if shape.rank else shape
            handle = f"data/{replica.prefix}/{kept[index]}"
            editor.add("VarHandleOp", handle, device=host, dtype=dtype, shape=shape, shared_name=kept[index])
            editor.remove([name])
            editor.add(
                "ResourceGather", name, [handle, rows], host, dtype=dtype, Tindices=tf.int64, batch_dims=0,
                validate_indices=True,
            )
    return replace(graph, graph_def=editor.graph_def(), feeds=tuple(feeds))
