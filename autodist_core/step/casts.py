"""Which casts change how many bytes a value has, since a value travels where it is smallest."""

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2


def shrinks(node: node_def_pb2.NodeDef) -> bool:
    """Whether a node casts floating-point numbers to a smaller type, as layers of mixed precision cast their weights.

    >>> from autodist_core.step.editor import Editor
    >>> graph = Editor()
    >>> cast = graph.add("Cast", "cast", ["x"], SrcT=tf.float32, DstT=tf.bfloat16)
    >>> shrinks(graph[cast]), grows(graph[cast])
    (True, False)
    """
    return _gain(node) < 0


def grows(node: node_def_pb2.NodeDef) -> bool:
    """Whether a node casts floating-point numbers to a larger type, which keeps their values.

    >>> from autodist_core.step.editor import Editor
    >>> graph = Editor()
    >>> cast = graph.add("Cast", "cast", ["x"], SrcT=tf.bfloat16, DstT=tf.float32)
    >>> shrinks(graph[cast]), grows(graph[cast])
    (False, True)
    """
    return _gain(node) > 0


def _gain(node: node_def_pb2.NodeDef) -> int:
    types = [tf.as_dtype(node.attr[key].type) for key in ("SrcT", "DstT")] if node.op == "Cast" else []
    return types[1].size - types[0].size if types and all(dtype.is_floating for dtype in types) else 0
