"""Encode the values of a training's state as JSON and a list of arrays, and decode them again.

In: numbers, strings, None, arrays, bytes, functions of modules, and lists, tuples and dictionaries of them. Out: what
`json` can write, and the arrays. Nothing is pickled, so reading a file runs no code.

>>> arrays = []
>>> encoded = encode({"best": 0.5, "weights": (np.zeros(2), None)}, arrays)
>>> decode(encoded, arrays)
{'best': 0.5, 'weights': (array([0., 0.]), None)}
"""

import sys
from collections.abc import Callable, Sequence
from functools import reduce
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.step.graph_item import Variable


class Later:
    """An array that is read when it is written: a state of many arrays is never in memory as a whole.

    >>> [each.read().tolist() for each in (Later(lambda: np.zeros(2)),)]
    [[0.0, 0.0]]
    """

    def __init__(self, read: Callable[[], np.ndarray]) -> None:
        self.read = read


def encode(value: Any, arrays: list[Any]) -> Any:
    """What JSON can write of a value; its arrays are appended to `arrays`. A TypeError names a type it cannot encode.

    A `Variable` stands for its value, which machines have written to a checkpoint beside the file. The module has an
    example.

    >>> encode(object(), [])
    Traceback (most recent call last):
    TypeError: object
    """
    try:
        return _encoded(value, arrays)
    except RecursionError:
        raise TypeError(f"{type(value).__name__} that contains itself") from None


def _encoded(value: Any, arrays: list[Any]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic) and _is_known(np.asarray(value).dtype):
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "number": len(arrays) - 1}
    if isinstance(value, Later | Variable):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, bytes):
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(arrays) - 1}
    if type(value) in (list, tuple, set):
        parts = [_encoded(part, arrays) for part in value]
        return parts if type(value) is list else {type(value).__name__: parts}
    if type(value) is dict:
        return {"dict": [[_encoded(key, arrays), _encoded(part, arrays)] for key, part in value.items()]}
    if isinstance(value, FunctionType | BuiltinFunctionType) and _function(where := _where(value)) is value:
        return {"function": where}
    raise TypeError(type(value).__name__)


def name_of_type(dtype: np.dtype) -> str:
    """The name of an array's type: with the order of its bytes, or one of those that TensorFlow has added.

    >>> name_of_type(np.dtype(">f8"))
    '>f8'
    """
    return dtype.name if dtype.isbuiltin == 2 else dtype.str


def type_of_name(name: str) -> np.dtype:
    """The type that `name_of_type` has named. A TypeError says that there is none.

    >>> [type_of_name(name).name for name in ("<m8[s]", "bfloat16")]
    ['timedelta64[s]', 'bfloat16']
    """
    return np.dtype(name if name[:1] in "<>|" else tf.as_dtype(name).as_numpy_dtype)


def _is_known(dtype: np.dtype) -> bool:
    """Whether an array of this type can be written as bytes, and made of them again."""
    if dtype.hasobject or not dtype.itemsize:
        return False
    try:
        return bool(type_of_name(name_of_type(dtype)) == dtype)
    except TypeError:
        return False


def decode(encoded: Any, arrays: Sequence[np.ndarray]) -> Any:
    """The value that was encoded. The module has an example."""
    if isinstance(encoded, list):
        return [decode(part, arrays) for part in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((kind, content),) = encoded.items()
    if kind == "array":
        return arrays[content]
    if kind == "number":
        return arrays[content][()]
    if kind == "bytes":
        return arrays[content].tobytes()
    if kind == "dict":
        return {decode(key, arrays): decode(part, arrays) for key, part in content}
    if kind == "function":
        return _function(content)
    return {"tuple": tuple, "set": set}[kind](decode(part, arrays) for part in content)


def _where(function: Any) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def _function(where: str) -> Any:
    """A function by its module, which must be imported already, and its name there; None if it is not there."""
    module, _, name = where.partition(":")
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), sys.modules.get(module))
