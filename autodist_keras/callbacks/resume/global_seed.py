"""The seed of `keras.random` for draws without a `SeedGenerator` of their own, as `Resume` saves it and gives it back.

In: nothing; Keras has one such generator in a process. Out: its state. It is state of a training also if no training
step draws from it: a validation may, or a callback.

>>> _ = keras.random.uniform(())
>>> before = value(lambda variable: variable.numpy())
>>> number = float(keras.random.uniform(()))
>>> set_value(before)
>>> float(keras.random.uniform(())) == number
True
"""

from collections.abc import Callable
from typing import Any, TypeVar

import keras
import numpy as np

from autodist_keras.capture.variables import tf_variable_of
from autodist_keras.seams import GLOBAL_ATTRIBUTE

T = TypeVar("T")
_NAME = "global_seed_generator"
"""Keras's name of the generator. Its older versions have no constant for it."""


def value(read: Callable[[Any], T]) -> T | None:
    """What `read` gives for the generator's TensorFlow variable; None if nothing has been drawn from it.

    The module has an example.
    """
    generator = _generator()
    return None if generator is None else read(tf_variable_of(generator.state))


def set_value(value: np.ndarray | None) -> None:
    """Give the generator a state that `value` returned. The module has an example.

    >>> set_value(None)  # nothing changes
    """
    if value is not None:
        if _generator() is None:
            keras.random.uniform(())  # makes it
        _generator().state.assign(value)


def _generator() -> Any:
    return GLOBAL_ATTRIBUTE.get()(_NAME)
