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

An error that comes out of a trace gets notes: the user's line, and why a size is None. Python shows notes below the
message.
"""

import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.source_lines import is_of_library
from autodist_core.errors import AutodistError, CaptureError

_OF_UNKNOWN_SIZE = re.compile(r"\bNone\b|NoneType|partially known|[Uu]nknown|Cannot infer|Iterating over a symbolic")
"""Words of errors about a size that is not known."""


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


def explain(error: Exception, signature: Sequence[Any], remedy: str = "") -> None:
    """Add the notes to an error of a function that was traced for such a signature.

    >>> import tensorflow as tf
    >>> error = TypeError("unsupported operand type(s) for *: 'NoneType' and 'int'")
    >>> explain(error, [tf.TensorSpec([None, 3])])
    >>> error.__notes__[-1].partition(":")[0]
    'The number of examples is not known while a step is traced, as batches of any size and slices of them take it'
    """
    if isinstance(error, AutodistError):
        return
    place = _place(error)
    if place:
        error.add_note(f"It was raised while a step was traced, by {place}")
    open_axis = any(spec.shape.rank and spec.shape[0] is None for spec in signature)
    if open_axis and _OF_UNKNOWN_SIZE.search(str(error)):
        error.add_note(
            "The number of examples is not known while a step is traced, as batches of any size and slices of them "
            "take it: x.shape[0] of a batch x is None. Where the line uses that size, take tf.shape(x)[0], or -1 in a "
            "shape; to compute something for each example, take tf.map_fn or tf.vectorized_map."
            f"{remedy and ' '}{remedy}"
        )


def _place(error: Exception) -> str:
    """The innermost line that the error came through and that is not of a library, as Python's tracebacks show it."""
    converted = getattr(error, "ag_error_metadata", None)
    frames = [] if converted is None else [
        (each.filename, each.lineno, each.function_name, each.code) for each in converted.translated_stack
    ]
    # TensorFlow's conversion of `if` and `while` keeps the lines of the functions that it has converted.
    frames += [
        (each.filename, each.lineno, each.name, each.line)
        for each in reversed(traceback.extract_tb(error.__traceback__)) if not frames
    ]
    for file, line, function, code in frames:
        if not is_of_library(file):
            return f'File "{file}", line {line}, in {function}\n    {(code or "").strip()}'.rstrip()
    return ""
