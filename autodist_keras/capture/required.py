"""What a traced step must have: dense results, and an optimizer for each variable that it trains.

In: the result of a traced step, or the captured step. Out: nothing, or a CaptureError::

    result 'lengths' of the step is a RaggedTensor, and it is not known how those of the replicas combine.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.runtime import COMPOSITE
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.step.naming import label, node_of
from autodist_keras.capture.variables import ModelVariables

_EXAMPLES = 1009
"""A number of examples that no axis has by chance of which the size depends on a variable, or on nothing."""


def require_dense(result: Any) -> None:
    """Refuse a ragged or sparse tensor among results that are numbers of the whole batch.

    >>> require_dense({"loss": 0.25})
    """
    for path, value in keras.tree.flatten_with_path(result):
        if isinstance(value, COMPOSITE):
            raise CaptureError(
                f"result {'/'.join(map(str, path))!r} of the step is a {type(value).__name__}, and it is not known how "
                "those of the replicas combine. Return dense tensors; predict returns ragged and sparse ones, too."
            )


def require_rows(item: GraphItem, failure: str) -> None:
    """Raise an error if a step of `predict` failed, with this text, since a result cannot be put together of rows.

    >>> require_rows(GraphItem((), outputs=("gram",), concat_outputs=True), "Matrix size-incompatible")
    >>> require_rows(GraphItem((), outputs=("gram",), concat_outputs=True), "ConcatOp : {{node joined/gram/output0}}")
    Traceback (most recent call last):
    ...
    autodist_core.errors.CaptureError: result 0 of predict_step, made by 'gram', has no axis ...
    """
    for index, output in enumerate(item.outputs if item.concat_outputs and "ConcatOp" in failure else ()):
        if f"joined/{label(output)}}}" in failure:
            raise _of_no_axis(index, node_of(output)) from None


def require_one_axis(results: Sequence[tuple[int, str]]) -> None:
    """Refuse results of `predict` that have the examples along two axes: `results` are their numbers and names.

    >>> require_one_axis([(0, "gram")])
    Traceback (most recent call last):
    ...
    autodist_core.errors.CaptureError: result 0 of predict_step, made by 'gram', has no axis ...
    """
    for result in results:
        raise _of_no_axis(*result)


def along_two_axes(graph: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[tuple[int, str]]:
    """The numbers and names of a step's outputs that have the examples along two axes, as `x @ transposed x` has.

    TensorFlow infers the shapes of the outputs for a number of examples. Axes of a size that was known before are left
    out.

    >>> spec = tf.TensorSpec((None, 3), tf.float32)
    >>> graph = tf.function(lambda x: (x, x @ tf.transpose(x))).get_concrete_function(spec).graph
    >>> [number for number, name in along_two_axes(graph, graph.inputs, graph.outputs)]
    [1]
    """
    if all(tensor.shape.rank is not None and tensor.shape[1:].is_fully_defined() for tensor in outputs):
        return []
    with tf.Graph().as_default():
        given = {
            tensor.name: tf.compat.v1.placeholder(tensor.dtype, [_EXAMPLES, *tensor.shape[1:]])
            for tensor in inputs if tensor.shape.rank and tensor.shape[0] is None
        }
        names = [tensor.name for tensor in outputs]
        shapes = [each.shape for each in tf.graph_util.import_graph_def(graph.as_graph_def(), given, names)]
    return [
        (number, tensor.op.name) for number, (tensor, shape) in enumerate(zip(outputs, shapes, strict=True))
        if _axes_of_examples(tensor.shape, shape) > 1
    ]


def _axes_of_examples(before: tf.TensorShape, shape: tf.TensorShape) -> int:
    """How many axes have the number of examples of those whose sizes were open before."""
    if shape.rank is None:
        return 0
    sizes = zip(before.with_rank(shape.rank), shape, strict=True)
    return sum(known is None and size == _EXAMPLES for known, size in sizes)


def _of_no_axis(result: int, name: str) -> CaptureError:
    return CaptureError(
        f"result {result} of predict_step, made by {name!r}, has no axis along which the replicas' parts of it become "
        "the whole batch's: their other axes have different sizes. Return a value for each example (the examples along "
        "one axis), or a sum, a mean, a maximum or a minimum over the examples; or call the model itself, on one "
        "device: model(x)."
    )


def require_optimizers(model: Any, variables: ModelVariables, item: GraphItem) -> None:
    """Refuse a step that trains a variable without an optimizer of the model.

    Each replica would update the variable with its own slice of the batch. A copy that follows other weights (a
    teacher, a moving average) depends on no input. It is the same on every replica, and is not refused.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> require_optimizers(model, ModelVariables(model), GraphItem(()))
    """
    index = StepIndex.of(item)
    trainable = {variables.name_of(variable) for variable in model.trainable_variables}
    inputs = {tensor.name for tensor in item.inputs}
    for name, touched in index.touches.items():
        written = {touch.variable for touch in touched if touch.writes} & trainable
        if written and not index.is_update(name) and inputs & index.cone([name]):
            raise CaptureError(
                f"trainable variable {min(written)!r} is written by {name!r} outside an optimizer of the model, from "
                "this step's data. Make the optimizer an attribute of the model and call its apply, or make the "
                "variable non-trainable."
            )
