"""Static shapes of captured tensors, which TensorFlow infers from the captured graph.

In: the index of a captured step. Out: a shape for each tensor, by the tensor's name::

    partial_shapes(step)["dense/MatMul"]            TensorShape([None, 10])
    static_shapes(step)["dense/ReadVariableOp"]     (784, 10)
"""

from __future__ import annotations

import tensorflow as tf

from autodist_core.step import editor, naming
from autodist_core.step.index import StepIndex, analysis


@analysis
def partial_shapes(step: StepIndex) -> dict[str, tf.TensorShape]:
    """Return for each captured tensor the shape that TensorFlow infers; some axes may be unknown.

    >>> from autodist_core.capture.example import example_step
    >>> partial_shapes(StepIndex(example_step()))["matmul"]
    TensorShape([None, 1])
    """
    known = editor.Editor(step.graph.library, step.graph.versions)
    for node in step.nodes.values():
        if node.name in step.handle_of:
            variable = step.variables[step.handle_of[node.name]]
            known.add(
                "VarHandleOp", node.name, dtype=tf.as_dtype(variable.dtype), shape=tf.TensorShape(variable.shape)
            )
        else:
            known.merge([node])
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(known.graph_def(), name="")
    return {
        naming.canonical(tensor.name): tensor.shape
        for operation in graph.get_operations() for tensor in operation.outputs
    }


@analysis
def static_shapes(step: StepIndex) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the captured tensors, where TensorFlow infers every axis.

    >>> from autodist_core import GraphItem
    >>> @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    ... def total(x):
    ...     return tf.reduce_sum(x, axis=0, name="total")
    >>> graph = total.get_concrete_function().graph.as_graph_def()
    >>> step = StepIndex(GraphItem((), graph_bytes=graph.SerializeToString()))
    >>> partial_shapes(step)["x"], static_shapes(step)["total"]
    (TensorShape([None, 3]), (3,))
    """
    return {
        name: tuple(shape.as_list()) for name, shape in partial_shapes(step).items() if shape.is_fully_defined()
    }
