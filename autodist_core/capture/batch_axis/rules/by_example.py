"""Functions of TensorFlow that treat each example by itself, though the rules cannot tell it from their operations.

In: an operation. Out: whether such a function created the operation. `tf.nn.ctc_loss` of logits and labels::

    Range, ScatterNd, While, Empty, ...    created by the function: not followed
    IdentityN                              its result: one value for each example
"""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.states.state import NO_CLAIM, State, rows

_FUNCTIONS = {"ctc_loss": tf.nn.ctc_loss}
"""The functions, by a part of the name scope that each opens: the names of operations are read faster than stacks."""
_CODES = {part: inspect.unwrap(function).__code__ for part, function in _FUNCTIONS.items()}


def created(operation: Any) -> bool:
    """Whether one of the functions created an operation.

    >>> with tf.Graph().as_default():
    ...     logits, lengths = tf.zeros((5, 2, 4)), tf.fill((2,), 3)
    ...     loss = tf.nn.ctc_loss(tf.ones((2, 3), tf.int32), logits, lengths, lengths)
    ...     created(loss.op), created(logits.op)
    (True, False)
    """
    codes = [code for part, code in _CODES.items() if part in operation.name]
    return bool(codes) and any(
        (frame.filename, frame.name) == (code.co_filename, code.co_name)
        for code in codes for frame in operation.traceback or ()
    )


def states_of(tensors: Any) -> list[State]:
    """Return the states of tensors that one of the functions computes from examples: the result is a vector.

    >>> with tf.Graph().as_default():
    ...     losses, state = tf.zeros((2,)), tf.zeros((5, 2, 4))
    ...     [each.kind for each in states_of([losses, state])]
    ['rows', 'unknown']
    """
    return [rows(0) if tensor.shape.rank == 1 else NO_CLAIM for tensor in tensors]
