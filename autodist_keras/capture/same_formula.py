"""Compare a computation of Keras's with one in a kernel of TensorFlow, on numbers.

In: two functions that compute arrays. Out: by which part of the largest entry of an array the two differ:

>>> largest_difference(lambda: [tf.constant([3.0, 4.0])], lambda: [tf.constant([3.0, 5.0])])
0.25
"""

import inspect
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

_PLAIN = int | float | str | None
"""Settings that are no tensors of some graph, and no objects: with these a trial is made."""


def plain_settings(instance: Any, stock: Any, *but: str) -> tuple[tuple[str, Any], ...]:
    """The settings of an instance that the constructor of a class of Keras's own takes, but for some, by name.

    >>> import keras
    >>> plain_settings(keras.layers.LeakyReLU(0.5), keras.layers.LeakyReLU)
    (('negative_slope', 0.5),)
    """
    names = inspect.signature(stock.__init__).parameters.keys() - {"self", "name", "kwargs", *but}
    settings = ((name, getattr(instance, name)) for name in sorted(names))
    return tuple((name, value) for name, value in settings if isinstance(value, _PLAIN))


def largest_difference(own: Callable[[], Sequence[Any]], in_kernel: Callable[[], Sequence[Any]]) -> float:
    """The largest relative difference between the arrays of two functions. The module has an example.

    It is infinite where TensorFlow has no such kernel for the type, and where the numbers are not finite.
    """

    def computed() -> list[list[Any]]:
        return [[tf.cast(each, tf.float64).numpy() for each in compute()] for compute in (own, in_kernel)]

    # This thread may be tracing a function that may make no more variables. So another thread makes the trial's.
    with ThreadPoolExecutor(max_workers=1) as outside:
        try:
            found = outside.submit(computed).result()
        except tf.errors.InvalidArgumentError:
            return math.inf
    if not all(np.isfinite(each).all() for each in (*found[0], *found[1])):
        return math.inf
    return max(float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) or 1.0)) for a, b in zip(*found, strict=True))
