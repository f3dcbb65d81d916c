"""Trace a Python function into a graph, so that a trace that fails leaves everything as it was.

In: a function, and the types and shapes of its tensors. Out: TensorFlow's concrete function. Both fronts trace here.

TensorFlow gives a variable that is made in a trace its first value when the trace has ended. After a trace that fails,
such a variable would stay without one, and an optimizer that owns it counts as built all the same. Here it gets its
first value even then.

>>> made = []
>>> def fails(x):
...     made.append(tf.Variable(lambda: 3.0))
...     raise ZeroDivisionError("in the trace")
>>> concrete_function(fails, [tf.TensorSpec([])])
Traceback (most recent call last):
ZeroDivisionError: in the trace...
>>> float(made[0])
3.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.trace_errors import explain
from autodist_core.errors import CaptureError


def concrete_function(
    function: Callable[..., Any], signature: Sequence[tf.TensorSpec],
    refusal: Callable[[], CaptureError | None] = lambda: None, remedy: str = "",
) -> Any:
    """Trace a function. The module has an example.

    `refusal` returns the error that is raised in place of another one, which TensorFlow has made of it. `remedy` is
    what the front adds to the note on sizes that are not known in the trace.
    """
    made: list[tuple[Any, Any]] = []

    def note(create: Callable[..., Any], **options: Any) -> Any:
        variable = create(**options)
        made.append((variable, options.get("initial_value")))
        return variable

    def traced(*tensors: Any) -> Any:
        with tf.variable_creator_scope(note):
            return function(*tensors)

    try:
        return tf.function(traced, autograph=False).get_concrete_function(*signature)
    except BaseException as error:
        with tf.init_scope():
            for variable, value in made:
                _give_first_value(variable, value)
        if isinstance(error, Exception):
            refused = refusal()
            if refused is not None:
                raise refused from None
            explain(error, signature, remedy)
        raise


def _give_first_value(variable: Any, value: Any) -> None:
    """Give a variable that has no value yet its first one, if that is not made of the arguments of the trace."""
    if not tf.executing_eagerly() or variable.is_initialized():
        return
    value = value() if callable(value) else value
    if tf.is_symbolic_tensor(value):
        try:
            with tf.compat.v1.Session(graph=value.graph) as session:
                value = session.run(value)
        except tf.errors.InvalidArgumentError:
            return  # it is made of an argument
    variable.assign(value)
