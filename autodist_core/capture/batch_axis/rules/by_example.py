"""Functions of TensorFlow that treat each example by itself, though the rules cannot tell it from their operations.

In: an operation. Out: whether such a function created the operation, and the states of its results. `tf.nn.ctc_loss`
of logits and labels::

    Range, ScatterNd, While, Empty, ...    created by the function: not followed
    IdentityN                              its result: one value for each example

`tf.linalg.expm` repeats a step for all matrices as often as one of them needs it, and leaves the others as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Kind, State, rows

_OF_MATRICES = "matrix_exponential"
_FUNCTIONS = {"ctc_loss": tf.nn.ctc_loss, _OF_MATRICES: tf.linalg.expm}
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


def states_of(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of tensors that one of the functions computes from examples.

    A loss is a vector. Exponentials of matrices are along the axis along which the matrices are.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.linalg.expm(x), None, 2, 2)
    'rows along axis 0'
    """
    flow.couple_values([state for state in states if not state.is_size], operation)
    if _OF_MATRICES not in operation.name:
        return [rows(0) if tensor.shape.rank == 1 else NO_CLAIM for tensor in operation.outputs]
    given = [state for tensor, state in zip(operation.inputs, states, strict=True) if not created(tensor.op)]
    if any(state.kind == Kind.ROWS and state.axes != (0,) for state in given):
        flow.undecide(operation)
    return [rows(0) if tensor.shape.rank and tensor.shape[0] is None else NO_CLAIM for tensor in operation.outputs]
