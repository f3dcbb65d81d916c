"""States of functions along axes: they mix examples if the examples are along one of these axes.

In: the walk, an operation and the states of its inputs. Out: one state for all results, or a list of states. For `x`
with the examples along its first axis::

    Softmax(x)            rows along axis 0; a coupling if x has one axis only
    Cumsum(x, axis 0)     a coupling: the sum goes along the examples
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.rules import arithmetic, ragged
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES, BATCH_VALUE
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.reduced import Linear, Mixed, Sum
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Rows, State

ALONG_LAST = ("Softmax", "LogSoftmax", "TopK", "TopKV2", "NthElement")
"""Functions along the last axis."""
_LINEAR = ("Cumsum", "ReverseV2", "Roll")


def along(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a function along some axes, such as a softmax or a cumulative sum.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.nn.softmax(x), tf.cumsum(x, axis=1), tf.roll(x, 1, axis=1)))
    'rows along axis 0, rows along axis 0, rows along axis 0'
    >>> shown(lambda x: (tf.nn.softmax(x[:, 0]), tf.cumsum(x, axis=0)))
    'unknown, unknown; Softmax goes along the examples of a batch; Cumsum goes along the examples of a batch'
    >>> shown(lambda x: tf.random.shuffle(x))
    'unknown; RandomShuffle goes along the examples of a batch'
    >>> shown(lambda x: tf.reverse_sequence(x, [1, 2], seq_axis=1))
    'rows along axis 0'
    """
    if operation.type == "Cumsum" and (ends := ragged.ends_of_rows(operation, states[0])) is not None:
        return ends
    state = states[0]
    if isinstance(state, Linear) and operation.type in _LINEAR:
        return state
    if isinstance(state, Rows):
        axes = _axes(flow, operation)
        if axes is None:
            return NO_CLAIM
        if set(axes) & set(state.axes):
            return flow.couple(operation, ALONG_EXAMPLES)
    return arithmetic.alone(flow, operation, state)


def _axes(flow: Any, operation: Any) -> Sequence[int] | None:
    """The axes along which a function goes; None if they are not known."""
    rank = operation.inputs[0].shape.rank
    if operation.type == "RandomShuffle":
        return [0]
    if operation.type == "ReverseSequence":
        return [operation.get_attr("seq_dim")]
    if operation.type in ALONG_LAST:
        return None if rank is None else [rank - 1]
    return flow.axes_of(operation.inputs[2 if operation.type == "Roll" else 1], rank)


def arg_extreme(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the position of the largest or smallest entry along an axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.argmax(x, axis=1), tf.argmax(x, axis=0)))
    'rows along axis 0, mixed'
    """
    state, axes = states[0], flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank)
    if axes is None:
        return NO_CLAIM
    if not isinstance(state, Rows):
        return arithmetic.element_wise(flow, operation, [state])
    if axes[0] in state.axes:
        return Mixed(operation)
    return replace(state, axes=tuple(axis - (axes[0] < axis) for axis in state.axes), inner=None)


def by_example(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of an operation that treats the entries along the first axis one by one, as a convolution.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.nn.conv1d(x, tf.ones([2, 3, 4]), 1, "SAME"), None, 5, 3)
    'rows along axis 0'
    """
    state = states[0]
    if not isinstance(state, Rows):
        return arithmetic.element_wise(flow, operation, [s for s in states if not isinstance(s, Rows)])
    if state.axes != (0,):
        return NO_CLAIM
    flow.couple_values(states[1:], operation)
    return state


def space_and_batch(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of blocks that move between space and the first axis; the blocks are the slower index there.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]), None, 4, 4, 1)
    'rows along axis 0'
    """
    state, block = states[0], value_of(operation.inputs[1]) if len(operation.inputs) > 2 else None
    count = int(np.prod(block)) if block is not None else None
    if not isinstance(state, Rows):
        return arithmetic.element_wise(flow, operation, states)
    if state.axes != (0,) or count is None or state.outer is None:
        return NO_CLAIM
    if operation.type.startswith("Space"):
        return replace(state, outer=state.outer * count)
    return NO_CLAIM if state.outer % count else replace(state, outer=state.outer // count)


def transposed(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a transposed convolution of the third input, which a convolution's gradient is, too.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.nn.conv2d_transpose(x, tf.ones([2, 2, 1, 3]), [5, 4, 4, 1], 1), None, 4, 4, 3)
    'rows along axis 0'
    """
    state = states[2]
    return state if isinstance(state, Rows) and state.axes == (0,) else NO_CLAIM


def quantized(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of values that are rounded between bounds, which may be the extremes of the values themselves.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.quantization.quantize_and_dequantize_v2(x, 0.0, 1.0, range_given=True))
    'rows along axis 0'
    >>> shown(lambda x: tf.quantization.quantize_and_dequantize_v2(x, 0.0, 1.0))
    'unknown; QuantizeAndDequantizeV4 goes along the examples of a batch'
    """
    state, axis = states[0], -1 if operation.type.endswith("Dequantize") else operation.get_attr("axis")
    if isinstance(state, Rows) and not operation.get_attr("range_given") and state.axes != (axis,):
        return flow.couple(operation, ALONG_EXAMPLES)
    return arithmetic.element_wise(flow, operation, states)


def of_last_axes(flow: Any, operation: Any, states: Sequence[State], count: int) -> State:
    """Return the state of an operation on the vectors, matrices or images of so many last axes, along which it mixes.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.linalg.det(x), None, 2, 2)
    'rows along axis 0'
    >>> shown(lambda x: tf.signal.fft(tf.cast(x[:, 0], tf.complex64)))
    'unknown; FFT goes along the examples of a batch'
    >>> shown(lambda x: tf.linalg.cross(x, 2.0 * x))
    'rows along axis 0'
    >>> shown(lambda x: tf.image.adjust_contrast(x, 2.0), None, 4, 4, 3)
    'rows along axis 0'
    >>> shown(lambda x: tf.image.adjust_contrast(x, 2.0), None, 4, 3)
    'unknown; AdjustContrastv2 goes along the examples of a batch'
    """
    inputs = zip(operation.inputs, states, strict=True)
    with_rows = [(tensor.shape.rank, state) for tensor, state in inputs if isinstance(state, Rows)]
    if not with_rows:
        return arithmetic.element_wise(flow, operation, states)
    for rank, state in with_rows:
        if rank is None or state.axes != with_rows[0][1].axes:
            return NO_CLAIM
        if max(state.axes) >= rank - count:
            return flow.couple(operation, ALONG_EXAMPLES)
    flow.couple_values(states, operation)
    return aligned(flow, operation, states) or NO_CLAIM


def batch_norm(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of TensorFlow's batch normalization and of its statistics, the batch's own in training.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> parameters = {"scale": tf.ones(3), "offset": tf.zeros(3), "mean": [], "variance": []}
    >>> shown(lambda x: tf.raw_ops.FusedBatchNormV3(x=x, **parameters)[:3], None, 2, 2, 3)
    'rows along axis 0, a mean over the examples, mixed; FusedBatchNormV3 gives each example a value of the whole batch'
    """
    normalized, others = arithmetic.alone(flow, operation, states[0]), len(operation.outputs) - 1
    if not isinstance(states[0], Rows) or not operation.get_attr("is_training"):
        return [normalized, *[states[3] if isinstance(states[0], Rows) else normalized] * others]
    flow.couple(operation, BATCH_VALUE)
    return [normalized, Sum(0, operation), *[Mixed(operation)] * (others - 1)]


def cross_entropy(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the cross-entropy of logits and labels, and of its gradient.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.nn.softmax_cross_entropy_with_logits(x, x))
    'rows along axis 0'
    """
    if not any(isinstance(state, Rows) for state in states):
        return [arithmetic.element_wise(flow, operation, states)] * 2
    if any(isinstance(state, Rows) and state.axes != (0,) for state in states):
        return [flow.couple(operation, ALONG_EXAMPLES)] * 2
    return [aligned(flow, operation, states) or NO_CLAIM] * 2
