"""Let sums, means and largest lengths over a replica's examples be those of the whole batch, before they are used.

In: a captured graph, and the operations in `longest` or `totals` of a traced step. Out: the graph with markers. The
kernels take the markers' sums or largest values over the replicas. For texts of at most 3 words on one replica, and 5
on another::

    Sum(mask)                     ->  Identity(Sum(mask))                               the sum over the whole batch
    Max(lengths)                  ->  Identity(Max(lengths))                            5 on both
    RaggedTensorToTensor(words)   ->  RaggedTensorToTensor(words, shape=[-1, longest])  5 columns on both
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from autodist_core.step import naming
from autodist_core.step.editor import Editor

_PADDING = "RaggedTensorToTensor"


def marked(graph: Editor, operations: Iterable[Any]) -> tuple[Editor, tuple[str, ...]]:
    """Return the graph with a marker for each of these operations, and the names of the markers.

    >>> longest_of = tf.function(lambda lengths: tf.reduce_max(lengths), autograph=False)
    >>> function = longest_of.get_concrete_function(tf.TensorSpec([None], "int64"))
    >>> longest = [operation for operation in function.graph.get_operations() if operation.type == "Max"]
    >>> graph, markers = marked(Editor.of(function.graph.as_graph_def()), longest)
    >>> markers, list(graph["Max"].input)
    (('Max',), ['Max/own'])
    """
    names = {operation.name for operation in operations}
    if not names:
        return graph, ()
    changed, markers = graph.empty(), []
    for node in graph:
        if node.name not in names:
            changed.copy_captured(node, node.name, node.input)
        elif node.op == _PADDING:
            shape, marker = _common_shape(changed, node)
            changed.copy_captured(node, node.name, [shape, *node.input[1:]])
            markers.append(marker)
        else:
            own = f"{node.name}/own"
            changed.copy_captured(node, own, node.input)
            kind = node.attr["DstT" if node.op == "Cast" else "T"].type
            markers.append(changed.add("Identity", node.name, [own], T=tf.as_dtype(kind)))
    return changed, tuple(markers)


def _common_shape(graph: Editor, node: Any) -> tuple[str, str]:
    """Add the nodes of the shape to which all replicas pad; return its name, and the name of the marker in it."""
    shape, values, _, *partitions = naming.data_inputs(node)
    kinds = list(node.attr["row_partition_types"].list.s)
    size, index = (tf.as_dtype(node.attr[key].type) for key in ("Tshape", "Tindex"))
    given = {shape: tf.TensorSpec(None, size), values: tf.TensorSpec(None, tf.as_dtype(node.attr["T"].type))}
    own = graph.trace(
        f"{node.name}/own", partial(_own_lengths, kinds),
        given | dict.fromkeys(partitions, tf.TensorSpec(None, index)),
    )[0]
    marker = graph.add("Identity", f"{node.name}/longest", [own], T=size)
    return graph.trace(f"{node.name}/shape", _shape, {marker: tf.TensorSpec([None], size), **given})[0], marker


def _own_lengths(kinds: list[bytes], shape: Any, values: Any, *partitions: Any) -> Any:
    """The sizes of the ragged axes to which this replica alone would pad, without the axis of the examples."""
    axes = 1 + sum(kind != b"FIRST_DIM_SIZE" for kind in kinds)
    ones = tf.ones(tf.shape(values)[:1], tf.int32)
    # A shape without axes leaves all sizes open.
    wanted = shape[:axes] if shape.shape.rank else shape
    dense = tf.raw_ops.RaggedTensorToTensor(
        shape=wanted, values=ones, default_value=0, row_partition_tensors=partitions, row_partition_types=kinds
    )
    return tf.shape(dense, shape.dtype)[1:]


def _shape(longest: Any, shape: Any, values: Any) -> Any:
    """The shape to which all replicas pad: of the ragged axes the longest, of the others that of the values."""
    return tf.concat([tf.constant([-1], shape.dtype), longest, tf.shape(values, shape.dtype)[1:]], 0)
