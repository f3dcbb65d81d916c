"""Rules for functions that are computed entry by entry: sums, products, quotients and others.

In: the states of the inputs. Out: the state of the result. For `x` with the examples along its first axis, and its mean
over the examples::

    Square(x)          rows along axis 0
    Sub(x, mean)       rows along axis 0, and a coupling: each example gets a value of the whole batch
    Mul(mean, 2)       a mean over the examples
    Square(mean)       mixed: no combination of the replicas' values gives it
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import FIXED, PAIRS, SCALED
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.places import merged
from autodist_core.capture.batch_axis.states.sizes import function_of_sizes, is_negligible
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Kind, State

_HOMOGENEOUS = ("Abs", "Relu", "LeakyRelu", "Maximum", "Minimum", "Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan")
"""Operations that keep a factor of their inputs a factor, or whose caller works the factor out."""


_INCREASING = ("Ceil", "Elu", "Exp", "Expm1", "Floor", "Log", "Log1p", "Relu", "Relu6", "Rint", "Round", "Selu",
               "Sigmoid", "Sign", "Sinh", "Softplus", "Softsign", "Sqrt", "Tanh")
"""Functions whose value of the largest entry is the largest of their values."""
_OPPOSITE = {Kind.LARGEST: Kind.SMALLEST, Kind.SMALLEST: Kind.LARGEST}


def origin_of(states: Sequence[State]) -> Any:
    """Return the operation that made one value of several examples; None if no state has one.

    Where several states have one, an operation that is not a read of a variable goes first.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     average = tf.reduce_mean([1.0, 3.0], name="average").op
    >>> origin_of([SAME, State(Kind.SUM, origin=average)]).name
    'average'
    """
    found = [state.origin for state in states if state.couples]
    return next((origin for origin in found if origin.type != "ReadVariableOp"), found[0] if found else None)


def element_wise(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of any function of the entries at the same position after broadcasting.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.exp(x), tf.exp(tf.reduce_mean(x))))
    'rows along axis 0, mixed'
    """
    if is_always_true(operation):
        return SAME
    with_rows = [position for position, state in enumerate(states) if state.kind == Kind.ROWS]
    if with_rows:
        return _rows(flow, operation, states, with_rows)
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    if operation.type in _INCREASING and states[0].kind in (Kind.LARGEST, Kind.SMALLEST):
        return states[0]
    found = [state for state in states if state.kind not in (Kind.ALIKE, Kind.UNKNOWN)]
    if any(state.kind == Kind.ONE for state in found):
        are_places = all(state.stride for state in found if state.kind == Kind.ONE)
        flow.couple_values([state for state in found if not (are_places and state.is_size)], operation)
        return State(Kind.ONE)
    if any(state.kind == Kind.UNKNOWN for state in states):
        return NO_CLAIM
    if (shape := next((state for state in found if state.kind == Kind.SIZES), None)) is not None:
        whole = operation.outputs[0].dtype.is_integer and {state.kind for state in states} <= {Kind.ALIKE, Kind.SIZES}
        return shape._replace(outer=None) if whole else State(Kind.NUMBER, origin=shape.origin or operation)
    if (distinct := next((state for state in found if state.kind == Kind.DISTINCT), None)) is not None:
        return distinct
    return State(Kind.MIXED, origin=origin_of(found) or operation) if found else SAME


def _rows(flow: Any, operation: Any, states: Sequence[State], with_rows: Sequence[int]) -> State:
    rank = operation.outputs[0].shape.rank
    if rank is None:
        return NO_CLAIM
    axes: set[int] = set()
    is_scaled = operation.type not in _HOMOGENEOUS and _uses_scaled(flow, operation, states)
    for position in with_rows:
        state, own = states[position], operation.inputs[position].shape.rank
        if own is None:
            return NO_CLAIM
        here = {axis + rank - own for axis in state.axes}
        if axes and not axes & here:
            return flow.couple(operation, FIXED if _meets_a_size(operation, states, with_rows) else PAIRS)
        axes |= here
    if any(_fixes(tensor, rank, axes) for tensor, state in zip(operation.inputs, states, strict=False)
           if state.kind == Kind.ALIKE):
        return flow.couple(operation, FIXED)
    of_rows = [states[position] for position in with_rows]
    found = aligned(flow, operation, of_rows)
    if found is None:
        return NO_CLAIM
    found = found._replace(
        # What is noted here is not noted again where the result is used.
        degree=0 if is_scaled else max(state.degree for state in of_rows),
        stride=merged([state.stride for state in of_rows]),
        origin=next((state.origin for state in of_rows if state.origin), None),
        free=all(state.free for state in of_rows),
    )
    if all(states[position].stride for position in with_rows):
        # A function of positions and of their number is one of positions.
        states = [state for state in states if state.kind != Kind.NUMBER and not state.is_size]
    flow.couple_values(states, operation)
    return found._replace(axes=tuple(sorted(axes)))


def _fixes(tensor: Any, rank: int, axes: set[int]) -> bool:
    """Whether a tensor has a known number of entries along the examples, more than one that is for all of them."""
    own = tensor.shape.rank
    sizes = [] if own is None else [tensor.shape[axis - rank + own] for axis in axes if axis >= rank - own]
    return any(size not in (None, 1) for size in sizes)


def _meets_a_size(operation: Any, states: Sequence[State], with_rows: Sequence[int]) -> bool:
    """Whether the examples of one tensor are along an axis in which another one has a known number of other entries.

    So do weights of shape [n, 2] for losses of shape [n]: no other batch than one of 2 examples fits.
    """
    rank = operation.outputs[0].shape.rank
    tensors = [(operation.inputs[position], states[position]) for position in with_rows]
    axes = [{axis + rank - tensor.shape.rank for axis in state.axes} for tensor, state in tensors]
    return any(
        _fixes(tensor, rank, examples) for own, (tensor, _) in zip(axes, tensors, strict=True)
        for examples in axes if not examples & own
    )


def _uses_scaled(flow: Any, operation: Any, states: Sequence[State]) -> bool:
    """Note, and tell, if values that the batch's size scales meet a function that does not keep the factor."""
    added_up = operation.type in ("Add", "AddV2", "AddN", "Sub")
    if added_up and len({state.degree for state in states}) == 1 and all(state.kind == Kind.ROWS for state in states):
        return False
    scaled = [state for state in states if state.kind == Kind.ROWS and state.degree]
    for state in scaled:
        flow.couple(state.origin or operation, SCALED, operation)
    return bool(scaled)


def is_always_true(operation: Any) -> bool:
    """Whether an operation compares a tensor with itself, as TensorFlow does when it recomputes a gradient.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     counts = tf.constant([1, 2])
    ...     is_always_true(tf.equal(counts, counts).op), is_always_true(tf.equal(counts, 1).op)
    (True, False)
    """
    if operation.type != "Equal":
        return False
    one, other = operation.inputs
    return one is other and not (one.dtype.is_floating or one.dtype.is_complex)


def alone(flow: Any, operation: Any, state: State) -> State:
    """Return the state of an operation on the entries of each example, such as a softmax over features.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.nn.softmax(tf.reduce_mean(x, axis=0)))
    'mixed'
    """
    return state if state.kind == Kind.ROWS else element_wise(flow, operation, [state])


def same(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a copy, of a cast, or of a tensor with the sign changed.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.identity(x))
    'rows along axis 0'
    """
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    state = states[0]
    if operation.type == "Neg" and state.kind in (Kind.LARGEST, Kind.SMALLEST):
        return state._replace(kind=_OPPOSITE[state.kind])
    if operation.type == "Cast" and state.kind == Kind.SUM and not _keeps_sums(operation):
        return State(Kind.MIXED, origin=state.origin)
    return state


def _keeps_sums(operation: Any) -> bool:
    """Whether a cast keeps a sum a sum: a number that is cut to an integer or a truth value is none."""
    before, after = operation.inputs[0].dtype, operation.outputs[0].dtype
    return after.is_floating or after.is_complex or (before.is_integer and after.is_integer)


def added(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a sum or a difference.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.reduce_mean(x) + tf.reduce_mean(2.0 * x))
    'a mean over the examples'
    >>> shown(lambda x: tf.reduce_mean(x) + tf.reduce_max(x))
    'mixed'
    """
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    if any(state.kind not in (Kind.ALIKE, Kind.SUM) for state in states):
        extremes = [state for state in states if state.kind != Kind.ALIKE]
        if len(extremes) == 1 and extremes[0].kind in _OPPOSITE and operation.type != "Pack":
            taken_away = operation.type == "Sub" and states[0].kind == Kind.ALIKE
            return extremes[0]._replace(kind=_OPPOSITE[extremes[0].kind]) if taken_away else extremes[0]
        return element_wise(flow, operation, states)
    sums = [state for state in states if state.kind == Kind.SUM]
    if not sums:
        return SAME
    origin = origin_of(sums)
    degrees = {state.degree for state in sums}
    others = [tensor for tensor, state in zip(operation.inputs, states, strict=False) if state.kind == Kind.ALIKE]
    if others and degrees != {0} and not all(is_negligible(tensor) for tensor in others):
        degrees.add(0)
    if len(degrees) == 1:
        return State(Kind.SUM, degree=degrees.pop(), origin=origin)
    return State(Kind.MIXED, origin=origin or operation)


def multiplied(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a product.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.reduce_mean(x) * tf.cast(tf.shape(x)[0], tf.float32))
    'a sum over the examples'
    """
    return _scaled(flow, operation, states, 1)


def divided(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a quotient.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32))
    'a mean over the examples'
    """
    return _scaled(flow, operation, states, -1)


def _scaled(flow: Any, operation: Any, states: Sequence[State], power: int) -> State:
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    one, other = states
    if other.kind == Kind.ALIKE and one.kind in _OPPOSITE:
        return _scaled_extreme(one, operation.inputs[1])
    if one.kind == Kind.ALIKE and power == 1 and other.kind in _OPPOSITE:
        return _scaled_extreme(other, operation.inputs[0])
    if other.kind == Kind.ALIKE:
        return one
    if one.kind == Kind.ALIKE and power == 1:
        return other
    if other.is_size and one.kind in (Kind.SUM, Kind.ROWS):
        return _by_size(operation, one, one.degree + power * other.degree)
    if one.is_size and power == 1 and other.kind in (Kind.SUM, Kind.ROWS):
        return _by_size(operation, other, one.degree + other.degree)
    result = element_wise(flow, operation, states)
    if result.kind == Kind.ROWS and one.kind == other.kind == Kind.ROWS:
        return result._replace(degree=one.degree + power * other.degree)
    return result


def _scaled_extreme(state: State, factor: Any) -> State:
    """Return the state of the largest or smallest value times a constant: a negative one makes it the opposite."""
    value = value_of(factor)
    if value is None or not (np.all(value > 0) or np.all(value < 0)):
        return State(Kind.MIXED, origin=state.origin)
    return state if np.all(value > 0) else state._replace(kind=_OPPOSITE[state.kind])


def _by_size(operation: Any, state: State, degree: int) -> State:
    return state._replace(degree=degree, origin=operation if state.kind == Kind.ROWS else state.origin)


def larger(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the larger or the smaller of two numbers. Of truth values, true is the larger one.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.maximum(tf.reduce_max(x), 0.0))
    'the largest value over the examples'
    """
    extreme = Kind.LARGEST if operation.type in ("Maximum", "LogicalOr") else Kind.SMALLEST
    kinds = {state.kind for state in states}
    if extreme in kinds and kinds <= {extreme, Kind.ALIKE}:
        return State(extreme, origin=origin_of(states))
    return element_wise(flow, operation, states)
