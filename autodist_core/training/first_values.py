"""Variables without a value: of a model that is only planned, or that is larger than the memory of the program.

In: a shape, a type, and a function that makes the first value. Out: a TensorFlow variable without memory. Its value is
made when somebody looks at it, or when a session is about to get it. The session keeps large ones on disk, so that one
is in memory at a time.

>>> variable = without_value((2,), "float32", lambda: [1.0, 1.0])
>>> entry = Entry(Variable("w", (2,), "float32"), variable)
>>> entry.first_value().tolist()
[1.0, 1.0]
>>> variable.numpy().tolist(), entry.first_value() is None
([1.0, 1.0], True)
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

from autodist_core.interrupts import never_interrupted
from autodist_core.seams.table import WITHOUT_VALUE
from autodist_core.step.graph_item import Variable
from autodist_core.training.entries import Entry


def without_value(shape: tuple[int, ...], dtype: str, make: Callable[[], Any], **options: Any) -> Any:
    """Make a TensorFlow variable without memory; `make` makes its first value. The module has an example."""
    with tf.init_scope():
        variable = WITHOUT_VALUE.get()(shape=shape, dtype=dtype, **options)
    Entry(Variable(variable.name, shape, dtype), variable).free()
    variable.make_first_value = make
    own: Any = type(variable)
    variable.__class__ = _waiting(own)
    return variable


@cache
def _waiting(base: Any) -> Any:
    """A subclass of a variable's class that makes the first value when somebody looks. TensorFlow asks for a handle."""

    @never_interrupted
    def handle(self: Any) -> Any:
        if tf.executing_eagerly() and "make_first_value" in vars(self):
            entry = Entry(Variable(self.name, tuple(self.shape), self.dtype.name), self)
            if (value := entry.first_value()) is not None:
                entry.write(value)
        return vars(self)["_handle"]

    return type(base)(base.__name__, (base,), {
        "handle": property(handle), "_handle": property(handle),
        "device": property(lambda self: vars(self)["_handle"].device),  # an optimizer asks for it, and for no value
        "__module__": base.__module__, "__qualname__": base.__qualname__,
    })
