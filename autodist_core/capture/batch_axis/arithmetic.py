"""Rules for functions that are computed entry by entry: sums, products, quotients and others.

In: the states of the inputs. Out: the state of the result. For `x` with the examples along its first axis, and its mean
over the examples::

    Square(x)          rows along axis 0
    Sub(x, mean)       rows along axis 0, and a coupling: each example gets a value of the whole batch
    Mul(mean, 2)       a mean over the examples
    Square(mean)       mixed: no combination of the replicas' values gives it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autodist_core.capture.batch_axis.finding import PAIRS, SCALED
from autodist_core.capture.batch_axis.places import merged
from autodist_core.capture.batch_axis.sizes import function_of_sizes, is_negligible
from autodist_core.capture.batch_axis.state import (
    ALIKE,
    DISTINCT,
    LARGEST,
    MIXED,
    NO_CLAIM,
    NUMBER,
    ONE,
    ROWS,
    SAME,
    SIZES,
    SMALLEST,
    SUM,
    UNKNOWN,
    State,
)

_HOMOGENEOUS = ("Abs", "Relu", "LeakyRelu", "Maximum", "Minimum", "Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan")
"""Operations that keep a factor of their inputs a factor, or of which the caller works it out."""


def origin_of(states: Sequence[State]) -> Any:
    """Return the operation that made one value of several examples; None if no state has one.

    Where several states have one, an operation that is not a read of a variable goes first.
    """
    found = [state.origin for state in states if state.couples]
    return next((origin for origin in found if origin.type != "ReadVariableOp"), found[0] if found else None)


def element_wise(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of any function of the entries at the same position after broadcasting.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.exp(x), tf.exp(tf.reduce_mean(x))))
    'rows along axis 0, mixed'
    """
    with_rows = [position for position, state in enumerate(states) if state.kind == ROWS]
    if with_rows:
        return _rows(flow, operation, states, with_rows)
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    found = [state for state in states if state.kind not in (ALIKE, UNKNOWN)]
    if any(state.kind == ONE for state in found):
        flow.couple_values(found, operation)
        return State(ONE)
    if any(state.kind == UNKNOWN for state in states):
        return NO_CLAIM
    if (shape := next((state for state in found if state.kind == SIZES), None)) is not None:
        whole = operation.outputs[0].dtype.is_integer and all(state.kind in (ALIKE, SIZES) for state in states)
        return shape._replace(outer=None) if whole else State(NUMBER, origin=shape.origin or operation)
    if (distinct := next((state for state in found if state.kind == DISTINCT), None)) is not None:
        return distinct
    return State(MIXED, origin=origin_of(found) or operation) if found else SAME


def _rows(flow: Any, operation: Any, states: Sequence[State], with_rows: Sequence[int]) -> State:
    rank = operation.outputs[0].shape.rank
    if rank is None:
        return NO_CLAIM
    found: State | None = None
    axes: set[int] = set()
    if operation.type not in _HOMOGENEOUS:
        _require_unscaled(flow, operation, states)
    for position in with_rows:
        state, own = states[position], operation.inputs[position].shape.rank
        if own is None:
            return NO_CLAIM
        here = {axis + rank - own for axis in state.axes}
        if axes and not axes & here:
            flow.couple(operation, PAIRS, operation)
            return NO_CLAIM
        axes |= here
        found = state if found is None else found._replace(
            outer=found.outer if found.outer == state.outer else None,
            inner=found.inner if found.inner == state.inner else None,
            degree=found.degree if found.degree == state.degree else max(found.degree, state.degree),
            stride=merged([found.stride, state.stride]), subset=found.subset or state.subset,
            origin=found.origin or state.origin,
        )
    assert found is not None
    if all(states[position].stride for position in with_rows):
        # A function of positions and of their number is one of positions.
        states = [state for state in states if state.kind != NUMBER]
    flow.couple_values(states, operation)
    return found._replace(axes=tuple(sorted(axes)))


def _require_unscaled(flow: Any, operation: Any, states: Sequence[State]) -> None:
    """Note where values that the batch's size scales meet a function that does not keep the factor."""
    added_up = operation.type in ("Add", "AddV2", "AddN", "Sub")
    if added_up and len({state.degree for state in states}) == 1 and all(state.kind == ROWS for state in states):
        return
    for state in states:
        if state.kind == ROWS and state.degree:
            flow.couple(state.origin or operation, SCALED, operation)


def same(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a copy, of a cast, or of a tensor with the sign changed.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.identity(x))
    'rows along axis 0'
    """
    if (size := function_of_sizes(operation, states)) is not None:
        return size
    state = states[0]
    if operation.type == "Neg" and state.kind in (LARGEST, SMALLEST):
        return state._replace(kind=SMALLEST if state.kind == LARGEST else LARGEST)
    if operation.type == "Cast" and state.kind == SUM and not _keeps_sums(operation):
        return State(MIXED, origin=state.origin)
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
    if any(state.kind not in (ALIKE, SUM) for state in states):
        extremes = {state.kind for state in states}
        if operation.type in ("Add", "AddV2") and extremes in ({ALIKE, LARGEST}, {ALIKE, SMALLEST}):
            return next(state for state in states if state.kind != ALIKE)
        return element_wise(flow, operation, states)
    sums = [state for state in states if state.kind == SUM]
    if not sums:
        return SAME
    origin = origin_of(sums)
    degrees = {state.degree for state in sums}
    others = [tensor for tensor, state in zip(operation.inputs, states, strict=False) if state.kind == ALIKE]
    if others and degrees != {0} and not all(is_negligible(tensor) for tensor in others):
        degrees.add(0)
    if len(degrees) == 1:
        return State(SUM, degree=degrees.pop(), origin=origin)
    return State(MIXED, origin=origin or operation)


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
    if other.kind == ALIKE:
        return one if one.kind not in (LARGEST, SMALLEST) else State(MIXED, origin=one.origin)
    if one.kind == ALIKE and power == 1 and other.kind not in (LARGEST, SMALLEST):
        return other
    if other.is_size and one.kind in (SUM, ROWS):
        return _by_size(operation, one, one.degree + power * other.degree)
    if one.is_size and power == 1 and other.kind in (SUM, ROWS):
        return _by_size(operation, other, one.degree + other.degree)
    result = element_wise(flow, operation, states)
    if result.kind == ROWS and one.kind == other.kind == ROWS:
        return result._replace(degree=one.degree + power * other.degree)
    return result


def _by_size(operation: Any, state: State, degree: int) -> State:
    return state._replace(degree=degree, origin=operation if state.kind == ROWS else state.origin)


def larger(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the larger or the smaller of two numbers.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.maximum(tf.reduce_max(x), 0.0))
    'the largest value over the examples'
    """
    extreme = LARGEST if operation.type == "Maximum" else SMALLEST
    kinds = {state.kind for state in states}
    if extreme in kinds and kinds <= {extreme, ALIKE}:
        return State(extreme, origin=origin_of(states))
    return element_wise(flow, operation, states)
