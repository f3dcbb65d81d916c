"""Make the first value of a huge variable in parts: the numbers that its initializer draws as a whole.

In: an initializer of Keras, a shape and a type. Out: the value, on the disk if it is huge (`runtime.room`).

TensorFlow draws random numbers from a key and a counter. So a part of a value is drawn with a larger counter. The
initializer's graph is run for each part with another counter and another shape. Initializers that
compute more than a function of each number, as `Orthogonal` does, and users' own are called as usual.

>>> import keras
>>> initializer, dtype = keras.initializers.HeNormal(seed=3), np.dtype("float32")
>>> whole = initializer((500, 40), "float32").numpy()
>>> in_parts = _part_maker(initializer, (500, 40), dtype)
>>> np.array_equal(np.concatenate([in_parts(0, 12_000), in_parts(12_000, 8_000)]), whole.reshape(-1))
True
>>> _part_maker(keras.initializers.Orthogonal(seed=3), (500, 40), dtype) is None
True
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.runtime import HUGE_BYTES, fill, room

_PART = 1 << 23
"""How many numbers are drawn at a time."""
_DRAWS = {
    "StatelessRandomUniformV2": (1, 1), "StatelessRandomNormalV2": (1, 1), "StatelessTruncatedNormalV2": (256, 128),
}
"""How much the counter grows with 16 bytes of numbers, of float32 and of float64."""
_OF_EACH = {"Const", "Cast", "FloorMod", "StatelessRandomGetKeyCounter", "Sub", "Mul", "AddV2", "Identity", "Fill"}
_AS_IT_IS = tf.compat.v1.ConfigProto()
_AS_IT_IS.graph_options.rewrite_options.disable_meta_optimizer = True
_TRIED = (64, 64)


def first_value(initializer: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """What the initializer draws, as a tensor or as an array on the disk.

    >>> import keras
    >>> first_value(keras.initializers.Ones(), (2, 2), "float32").numpy().tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    of_numpy = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    make = _part_maker(initializer, shape, of_numpy) if math.prod(shape) * of_numpy.itemsize >= HUGE_BYTES else None
    if make is None or not _same_numbers(initializer, of_numpy):
        return initializer(shape, dtype=dtype)
    value = room(shape, of_numpy)
    flat = value.reshape(-1)
    for begin in range(0, flat.size, _PART):
        fill(flat[begin : begin + _PART], make(begin, min(_PART, flat.size - begin)))
    value.flags.writeable = False
    return value


def _same_numbers(initializer: Any, dtype: np.dtype[Any]) -> bool:
    """Whether this holds for a small value.

    >>> import keras
    >>> _same_numbers(keras.initializers.Constant(np.arange(128)), np.dtype("float32"))
    False
    """
    try:
        make, size = _part_maker(initializer, _TRIED, dtype), math.prod(_TRIED) // 4
        assert make is not None
        found = np.concatenate([make(begin, size) for begin in range(0, 4 * size, size)])
        return np.array_equal(found, np.reshape(initializer(_TRIED, dtype=dtype.name), -1))
    except (ValueError, tf.errors.InvalidArgumentError):
        return False  # a constant with a shape of its own


def _part_maker(
    initializer: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[int, int], np.ndarray] | None:
    """What makes some numbers of the flat value: from this one on, so many."""
    of_keras = type(initializer).__module__.startswith("keras.") and isinstance(getattr(initializer, "seed", 0), int)
    if not of_keras or dtype.name not in ("float32", "float64"):
        return None
    with tf.Graph().as_default() as graph:
        output = initializer(shape, dtype=dtype.name)
    nodes = graph.get_operations()
    if not {node.type for node in nodes} <= _OF_EACH | _DRAWS.keys():
        return None
    session = tf.compat.v1.Session(graph=graph, config=_AS_IT_IS)
    shapes = [node.inputs[0] for node in nodes if node.type in _DRAWS or node.type == "Fill"]
    counters = {
        node.inputs[2]: (session.run(node.inputs[2]), _DRAWS[node.type][dtype.itemsize == 8])
        for node in nodes if node.type in _DRAWS
    }

    def make(begin: int, count: int) -> np.ndarray:
        feeds = {each: _further(first, begin * dtype.itemsize // 16 * step) for each, (first, step) in counters.items()}
        feeds |= dict.fromkeys(shapes, [count] + [1] * (len(shape) - 1))
        value: np.ndarray = session.run(output, feeds)
        return value.reshape(-1)

    return make


def _further(counter: np.ndarray, by: int) -> np.ndarray:
    low, high = (int(half) for half in counter)
    number = low + (high << 64) + by
    return np.array([number % (1 << 64), (number >> 64) % (1 << 64)], "uint64")
