"""Static shapes of captured tensors, which TensorFlow infers from the captured graph.

In: the index of a captured step. Out: a shape for each tensor, by the tensor's name::

    partial_shapes(step)["dense/MatMul"]            TensorShape([None, 10])
    static_shapes(step)["dense/ReadVariableOp"]     (784, 10)
"""

from collections.abc import Collection

import tensorflow as tf

from autodist_core.log import log
from autodist_core.step import editor, naming
from autodist_core.step.index import StepIndex, analysis

_EXAMPLES = 10_007, 10_009
"""The sizes of a batch for which shapes are inferred: two prime numbers. No axis of a fixed size follows both."""


@analysis
def partial_shapes(step: StepIndex) -> dict[str, tf.TensorShape]:
    """Return for each captured tensor the shape that TensorFlow infers; some axes may be unknown.

    >>> from autodist_core.capture.example import example_step
    >>> partial_shapes(StepIndex(example_step()))["matmul"]
    TensorShape([None, 1])
    """
    return _inferred(step, None)


@analysis
def rows_of_each(step: StepIndex) -> dict[str, int]:
    """Return for each captured tensor how many rows it has for each example, where TensorFlow infers that.

    A step that cannot run on batches of these sizes, such as one that halves the batch, has none.

    >>> @tf.function(input_signature=[tf.TensorSpec([None, 3, 2], tf.float32, "x")])
    ... def rows(x):
    ...     return tf.reshape(x, (-1, 2), name="all"), tf.gather(x, [0, 1], name="two"), tf.tanh(x, name="one")
    >>> from autodist_core import GraphItem
    >>> from autodist_core.step.graph_item import Tensor
    >>> graph = rows.get_concrete_function().graph.as_graph_def()
    >>> x = Tensor("x", "float32", (None, 3, 2))
    >>> found = rows_of_each(StepIndex(GraphItem((), inputs=(x,), graph_bytes=graph.SerializeToString())))
    >>> found["all"], found["one"], found.get("two")
    (3, 1, None)
    """
    try:
        one, other = ({
            name: shape[0] // examples for name, shape in _inferred(step, examples).items()
            if shape.rank and shape[0] and shape[0] % examples == 0
        } for examples in _EXAMPLES)  # fmt: skip
    except ValueError as error:
        log.debug("The rows of each example are not known: %s", error)
        return {}
    return {name: rows for name, rows in one.items() if other.get(name) == rows}


def imported(step: StepIndex, examples: int | None, unknown: Collection[str] = ()) -> tf.Graph:
    """Return the captured graph, with variables, for a batch of so many examples; None stands for any number.

    Nothing is known of the shapes of the tensors in `unknown`.

    >>> from autodist_core.capture.example import example_step
    >>> imported(StepIndex(example_step()), 60).get_tensor_by_name("matmul:0").shape
    TensorShape([60, 1])
    """
    known = editor.Editor(step.graph.library, step.graph.versions)
    for node in step.nodes.values():
        if node.name in step.handle_of:
            variable = step.variables[step.handle_of[node.name]]
            known.add("VarHandleOp", node.name, dtype=tf.as_dtype(variable.dtype), shape=tf.TensorShape(variable.shape))
        elif examples and node.name in step.rows:
            of_batch = tf.TensorShape([examples, *step.rows[node.name][1:]])
            known.add("Placeholder", node.name, dtype=tf.as_dtype(node.attr["dtype"].type), shape=of_batch)
        elif node.name in unknown:
            known.add("Placeholder", node.name, dtype=tf.as_dtype(node.attr["T"].type), shape=tf.TensorShape(None))
        else:
            known.merge([node])
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(known.graph_def(), name="")
    return graph


def _inferred(step: StepIndex, examples: int | None) -> dict[str, tf.TensorShape]:
    """The shapes for a batch of so many examples; None stands for any number."""
    # A marker of rows becomes the rows of the whole batch.
    graph = imported(step, examples, step.item.cross_replica_gathers if examples else ())
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
    return {name: tuple(shape.as_list()) for name, shape in partial_shapes(step).items() if shape.is_fully_defined()}
