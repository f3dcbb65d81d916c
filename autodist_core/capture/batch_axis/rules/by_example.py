"""TensorFlow's CTC loss treats each example by itself, though the rules cannot tell it from its operations.

In: an operation. Out: whether `tf.nn.ctc_loss` created it, and the states of its results. Of logits and labels::

    Range, ScatterNd, While, Empty, ...    created by the function: not followed
    IdentityN                              its result: one value for each example
"""

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.states.reduced import Size
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Rows, State

_SCOPE = "ctc_loss"
"""A part of the name scope that the function opens: the names of operations are read faster than stacks."""
_CODE = inspect.unwrap(tf.nn.ctc_loss).__code__


def created(operation: Any) -> bool:
    """Whether the function created an operation.

    >>> with tf.Graph().as_default():
    ...     logits, lengths = tf.zeros((5, 2, 4)), tf.fill((2,), 3)
    ...     loss = tf.nn.ctc_loss(tf.ones((2, 3), tf.int32), logits, lengths, lengths)
    ...     created(loss.op), created(logits.op)
    (True, False)
    """
    return _SCOPE in operation.name and any(
        (frame.filename, frame.name) == (_CODE.co_filename, _CODE.co_name) for frame in operation.traceback or ()
    )


def states_of(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of tensors that the function computes from examples. The losses are a vector.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> labels, three = tf.ones((2, 3), tf.int32), tf.constant([3, 3])
    >>> shown(lambda x: tf.nn.ctc_loss(labels, x, three, three, logits_time_major=False), 2, 5, 4)
    'rows along axis 0'
    """
    flow.couple_values([state for state in states if not isinstance(state, Size)], operation)
    return [Rows() if tensor.shape.rank == 1 else NO_CLAIM for tensor in operation.outputs]
