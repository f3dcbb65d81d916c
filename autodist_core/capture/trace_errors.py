"""What an error that comes out of a trace says besides: the user's line, and why a size is None.

In: an error, and the types and shapes for which a function was traced. Out: the same error, with notes. Python shows
notes below the message.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from typing import Any

from autodist_core.capture.source_lines import is_of_library
from autodist_core.errors import AutodistError

_OF_UNKNOWN_SIZE = re.compile(r"\bNone\b|NoneType|partially known|[Uu]nknown|Cannot infer|Iterating over a symbolic")
"""Words of errors about a size that is not known."""


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
