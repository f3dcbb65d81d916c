"""Values that a graph computes of constants alone, such as the permutation of a transpose.

In: a tensor of a graph. Out: its value as a NumPy array, or None if it depends on anything else than constants::

    Sub(Rank(x), 1)    array(2), for an `x` of three axes
    Shape(x)           None, if the batch size is open
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

_LARGEST = 64
"""More entries than an axis list, a permutation or a shape has; nothing larger is computed."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide,
    "FloorMod": np.mod, "Neg": np.negative, "Maximum": np.maximum, "Minimum": np.minimum, "Range": np.arange,
    "InvertPermutation": np.argsort, "ConcatV2": lambda *parts: np.concatenate(parts[:-1], int(parts[-1])),
    "Less": np.less, "GreaterEqual": np.greater_equal, "SelectV2": np.where,
    "Reshape": np.reshape, "ExpandDims": lambda value, axis: np.expand_dims(value, int(axis)),
    "ReverseV2": lambda value, axes: np.flip(value, tuple(np.atleast_1d(axes))), "Identity": np.asarray,
    "Cast": np.asarray,
    "Roll": lambda value, shift, axes: np.roll(value, tuple(np.atleast_1d(shift)), tuple(np.atleast_1d(axes))),
}  # fmt: skip
"""What operations compute, of the values of their inputs."""


def value_of(tensor: Any) -> Any:
    """The value of a tensor that is made of constants alone; None where it is not known.

    >>> with tf.Graph().as_default():
    ...     last = tf.rank(tf.zeros((2, 3, 4))) - 1
    ...     print(value_of(tf.concat([[last], tf.range(1, last), [0]], 0)))
    [2 1 0]
    >>> with tf.Graph().as_default():
    ...     print(value_of(tf.range(tf.rank(0) + 4)[-2]), value_of(tf.range(tf.rank(0) + 4)[1:]))
    2 [1 2 3]
    """
    value = tf.get_static_value(tensor)
    if value is not None:
        return value
    operation = tensor.op
    count = tensor.shape.num_elements()
    if count is not None and count > _LARGEST:
        return None
    if operation.type == "Pack":
        parts = [value_of(part) for part in operation.inputs]
        return None if any(part is None for part in parts) else np.stack(parts, operation.get_attr("axis"))
    function = partial(_slice, operation) if _cuts_first_axis(operation) else _FUNCTIONS.get(operation.type)
    if function is None:
        return None
    values = []
    for each in operation.inputs:
        values.append(value_of(each))
        if values[-1] is None or np.size(values[-1]) > _LARGEST:
            return None
    # NumPy computes some functions in a wider type, and a cast is to the type of the result.
    return np.asarray(function(*values)).astype(operation.outputs[0].dtype.as_numpy_dtype)


def number_of(tensor: Any) -> float | None:
    """The value of a tensor of one number that is made of constants alone; None for any other tensor.

    >>> number_of(tf.constant([4])), number_of(tf.constant([4, 5])), number_of(tf.constant("four"))
    (4, None, None)
    """
    value = value_of(tensor)
    if value is None or np.size(value) != 1 or not np.issubdtype(np.asarray(value).dtype, np.number):
        return None
    return np.asarray(value).reshape(()).item()


def _cuts_first_axis(operation: Any) -> bool:
    return operation.type == "StridedSlice" and operation.inputs[1].shape == (1,) and not any(
        operation.get_attr(f"{name}_mask") for name in ("ellipsis", "new_axis")
    )


def _slice(operation: Any, value: Any, *bounds: Any) -> Any:
    begin, end, step = (int(each[0]) for each in bounds)
    if operation.get_attr("shrink_axis_mask"):
        return value[begin]
    masks = operation.get_attr("begin_mask"), operation.get_attr("end_mask")
    return value[None if masks[0] else begin : None if masks[1] else end : step]
