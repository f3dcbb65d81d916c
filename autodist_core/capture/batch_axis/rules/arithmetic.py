"""Rules for functions that are computed entry by entry: sums, products, quotients and others.

In: the states of the inputs. Out: the state of the result. For `x` with the examples along its first axis, and its mean
over the examples::

    Square(x)          rows along axis 0
    Sub(x, mean)       rows along axis 0, and a coupling: each example gets a value of the whole batch
    Mul(mean, 2)       a mean over the examples
    Square(mean)       mixed: no combination of the replicas' values gives it
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import FIXED, PAIRS, SCALED
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.places import merged
from autodist_core.capture.batch_axis.states.reduced import Extreme, Largest, Linear, Mixed, Number, Size, Smallest, Sum
from autodist_core.capture.batch_axis.states.sizes import function_of_sizes, is_negligible
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, Distinct, One, Rows, Sizes, State

_HOMOGENEOUS = ("Abs", "Relu", "LeakyRelu", "Maximum", "Minimum", "Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan")
"""Operations that keep a factor of their inputs a factor, or whose caller works the factor out."""
_INCREASING = ("Ceil", "Elu", "Exp", "Expm1", "Floor", "Log", "Log1p", "Relu", "Relu6", "Rint", "Round", "Selu",
               "Sigmoid", "Sign", "Sinh", "Softplus", "Softsign", "Sqrt", "Tanh")
"""Functions whose value of the largest entry is the largest of their values."""


def origin_of(states: Sequence[State]) -> Any:
    """Return the operation that made one value of several examples; None if no state has one.

    Where several states have one, an operation that is not a read of a variable goes first.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     average = tf.reduce_mean([1.0, 3.0], name="average").op
    >>> origin_of([SAME, Sum(0, average)]).name
    'average'
    """
    found = [state.origin for state in states if state.couples]
    return next((origin for origin in found if origin.type != "ReadVariableOp"), found[0] if found else None)


def extreme_of(states: Sequence[State]) -> Extreme | None:
    """Return the state of tensors if all are largest entries over the examples, or all are smallest ones.

    >>> extreme_of([SAME, Largest("Max")]), extreme_of([Largest("Max"), Smallest("Min")])
    (Largest(origin='Max'), None)
    """
    found = [state for state in states if state != SAME]
    alike = len({type(state) for state in found}) == 1
    return found[0] if alike and isinstance(found[0], Extreme) else None


def element_wise(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of any function of the entries at the same position after broadcasting.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.exp(x), tf.exp(tf.reduce_mean(x))))
    'rows along axis 0, mixed'
    """
    if is_always_true(operation):
        return SAME
    inputs = zip(operation.inputs, states, strict=False)
    with_rows = [(tensor, state) for tensor, state in inputs if isinstance(state, Rows)]
    if with_rows:
        return _rows(flow, operation, states, with_rows)
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    if operation.type in _INCREASING and isinstance(states[0], Extreme):
        return states[0]
    found = [state for state in states if state not in (SAME, NO_CLAIM)]
    if of_one := [state for state in found if isinstance(state, One)]:
        are_places = all(state.stride for state in of_one)
        flow.couple_values([state for state in found if not (are_places and isinstance(state, Size))], operation)
        return One()
    if NO_CLAIM in states:
        return NO_CLAIM
    if (shape := next((state for state in found if isinstance(state, Sizes)), None)) is not None:
        whole = operation.outputs[0].dtype.is_integer and all(isinstance(state, Sizes) for state in found)
        return replace(shape, times=None) if whole else Number(shape.origin or operation)
    if (distinct := next((state for state in found if isinstance(state, Distinct)), None)) is not None:
        return distinct
    return Mixed(origin_of(found) or operation) if found else SAME


def _rows(flow: Any, operation: Any, states: Sequence[State], with_rows: Sequence[tuple[Any, Rows]]) -> State:
    rank = operation.outputs[0].shape.rank
    if rank is None:
        return NO_CLAIM
    axes: set[int] = set()
    is_scaled = operation.type not in _HOMOGENEOUS and _uses_scaled(flow, operation, states)
    for tensor, state in with_rows:
        if tensor.shape.rank is None:
            return NO_CLAIM
        here = {axis + rank - tensor.shape.rank for axis in state.axes}
        if axes and not axes & here:
            return flow.couple(operation, FIXED if _meets_a_size(rank, with_rows) else PAIRS)
        axes |= here
    constants = [tensor for tensor, state in zip(operation.inputs, states, strict=False) if state == SAME]
    if any(_fixes(tensor, rank, axes) for tensor in constants):
        return flow.couple(operation, FIXED)
    of_rows = [state for _, state in with_rows]
    found = aligned(flow, operation, of_rows)
    if found is None:
        return NO_CLAIM
    if all(state.stride for state in of_rows):
        # A function of positions and of their number is one of positions.
        states = [state for state in states if not isinstance(state, (Number, Size))]
    flow.couple_values(states, operation)
    return replace(
        found, axes=tuple(sorted(axes)),
        # What is noted here is not noted again where the result is used.
        degree=0 if is_scaled else max(state.degree for state in of_rows),
        stride=merged([state.stride for state in of_rows]),
        origin=next((state.origin for state in of_rows if state.origin), None),
        free=all(state.free for state in of_rows),
    )


def _fixes(tensor: Any, rank: int, axes: set[int]) -> bool:
    """Whether a tensor has a known number of entries along the examples, more than one that is for all of them."""
    own = tensor.shape.rank
    sizes = [] if own is None else [tensor.shape[axis - rank + own] for axis in axes if axis >= rank - own]
    return any(size not in (None, 1) for size in sizes)


def _meets_a_size(rank: int, with_rows: Sequence[tuple[Any, Rows]]) -> bool:
    """Whether the examples of one tensor are along an axis in which another one has a known number of other entries.

    So do weights of shape [n, 2] for losses of shape [n]: no other batch than one of 2 examples fits.
    """
    axes = [{axis + rank - tensor.shape.rank for axis in state.axes} for tensor, state in with_rows]
    return any(
        _fixes(tensor, rank, examples) for own, (tensor, _) in zip(axes, with_rows, strict=True)
        for examples in axes if not examples & own
    )


def _uses_scaled(flow: Any, operation: Any, states: Sequence[State]) -> bool:
    """Note, and tell, if values that the batch's size scales meet a function that does not keep the factor."""
    added_up = operation.type in ("Add", "AddV2", "AddN", "Sub")
    if added_up and len({state.degree for state in states}) == 1 and all(isinstance(state, Rows) for state in states):
        return False
    scaled = [state for state in states if isinstance(state, Rows) and state.degree]
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
    return state if isinstance(state, Rows) else element_wise(flow, operation, [state])


def same(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a copy, of a cast, or of a tensor with the sign changed.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.identity(x))
    'rows along axis 0'
    """
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    state = states[0]
    if operation.type == "Neg" and isinstance(state, Extreme):
        return state.opposite()
    if operation.type == "Cast" and isinstance(state, Linear) and not _keeps_sums(operation):
        return Mixed(state.origin)
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
    if any(not isinstance(state, (Alike, Linear)) for state in states):
        found = [state for state in states if state != SAME]
        if len(found) == 1 and isinstance(found[0], Extreme) and operation.type != "Pack":
            return found[0].opposite() if operation.type == "Sub" and states[0] == SAME else found[0]
        return element_wise(flow, operation, states)
    sums = [state for state in states if isinstance(state, Linear)]
    if not sums:
        return SAME
    origin = origin_of(sums)
    degrees = {state.degree for state in sums}
    others = [tensor for tensor, state in zip(operation.inputs, states, strict=False) if state == SAME]
    if degrees != {0} and not all(is_negligible(tensor) for tensor in others):
        degrees.add(0)
    return Sum(degrees.pop(), origin) if len(degrees) == 1 else Mixed(origin or operation)


def scaled(flow: Any, operation: Any, states: Sequence[State], power: int) -> State:
    """Return the state of a product (power 1), or of a quotient (power -1).

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.reduce_mean(x) * tf.cast(tf.shape(x)[0], tf.float32))
    'a sum over the examples'
    >>> shown(lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float32))
    'a mean over the examples'
    """
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    (one, other), factor = states, operation.inputs[1]
    if power == 1 and isinstance(one, (Alike, Size)):
        one, other, factor = other, one, operation.inputs[0]
    degree = one.degree + power * other.degree
    if other == SAME:
        return _scaled_extreme(one, factor) if isinstance(one, Extreme) else one
    if isinstance(other, Size) and isinstance(one, Rows):
        return replace(one, degree=degree, origin=operation)
    if isinstance(other, Size) and isinstance(one, Linear):
        return replace(one, degree=degree)
    result = element_wise(flow, operation, states)
    if isinstance(result, Rows) and isinstance(one, Rows) and isinstance(other, Rows):
        return replace(result, degree=degree)
    return result


def _scaled_extreme(state: Extreme, factor: Any) -> State:
    """Return the state of the largest or smallest value times a constant: a negative one makes it the opposite."""
    value = value_of(factor)
    if value is None or not (np.all(value > 0) or np.all(value < 0)):
        return Mixed(state.origin)
    return state if np.all(value > 0) else state.opposite()


def larger(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the larger or the smaller of two numbers. Of truth values, true is the larger one.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.maximum(tf.reduce_max(x), 0.0))
    'the largest value over the examples'
    """
    extreme = Largest if operation.type in ("Maximum", "LogicalOr") else Smallest
    if isinstance(extreme_of(states), extreme):
        return extreme(origin_of(states))
    return element_wise(flow, operation, states)
