"""Keep TensorFlow from rewriting a method that a user's traced function calls.

In: a method. Out: the same method, which runs as it is written.

>>> @as_written
... def double(x):
...     return 2 * x
>>> double(2)
4
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def as_written(method: F) -> F:
    """Let a method run as it is written. The module has an example."""
    return cast(F, tf.autograph.experimental.do_not_convert(method))
