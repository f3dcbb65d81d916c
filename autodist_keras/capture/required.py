"""What a traced step must have: dense results, and an optimizer for each variable that it trains.

In: the result of a traced step, or the captured step. Out: nothing, or a CaptureError::

    result 'lengths' of the step is a RaggedTensor, and it is not known how those of the replicas combine.
"""

from __future__ import annotations

from typing import Any

import keras

from autodist_core.errors import CaptureError
from autodist_core.runtime import COMPOSITE
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.step.naming import label, node_of
from autodist_keras.capture.variables import ModelVariables


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
            raise CaptureError(
                f"result {index} of predict_step, made by {node_of(output)!r}, has no axis along which the replicas' "
                "parts of it become the whole batch's: their other axes have different sizes. Return a value for each "
                "example (the examples along one axis), or a sum, a mean, a maximum or a minimum over the examples; "
                "or call the model itself, on one device: model(x)."
            ) from None


def require_optimizers(model: Any, variables: ModelVariables, item: GraphItem) -> None:
    """Refuse a step that trains a variable without an optimizer of the model.

    Each replica would update the variable with its own slice of the batch. A copy that follows other weights (a
    teacher, a moving average) depends on no input. It is the same on every replica, and is not refused.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> require_optimizers(model, ModelVariables(model), GraphItem(()))
    """
    index = StepIndex(item)
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
