"""Compute once what several tests compare with."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import keras
import tensorflow as tf


def once(function: Callable[..., Any], *values: Any) -> Any:
    """What a function returns for these values, computed once for each kind of numbers that Keras and TensorFlow make.

    TensorFlow may round differently without its graph optimizer. A function that a test makes is not seen again: with
    such a one among the values, the result is not kept.
    """
    if any("<locals>" in getattr(value, "__qualname__", "") for value in values):
        return function(*values)
    off = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    return _known((keras.config.floatx(), keras.config.dtype_policy().name, not off), function, values)


@lru_cache(maxsize=128)
def _known(numbers: tuple, function: Callable[..., Any], values: tuple) -> Any:
    del numbers
    return function(*values)
