"""Rules for products that sum over axes: products of matrices, and einsum.

In: the states of the factors. Out: the state of the product. For `x` with the examples along its first axis, and a
kernel `w` that is alike on all replicas::

    MatMul(x, w)             rows along axis 0
    MatMul(x, transposed x)  a coupling: it pairs the examples with each other
    MatMul(transposed x, x)  a sum over the examples
"""

from collections.abc import Sequence
from typing import Any

from autodist_core.capture.batch_axis.rules import arithmetic
from autodist_core.capture.batch_axis.states.finding import FIXED, PAIRS
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.reshaping import labels
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Kind, State


def product(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a product of two tensors that sums over the axes which its result lacks.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: x @ tf.ones([3, 4]))
    'rows along axis 0'
    >>> shown(lambda x: tf.matmul(x, x, transpose_a=True))
    'a sum over the examples'
    >>> shown(lambda x: tf.eye(7) @ x)
    'unknown; MatMul fixes how many examples a batch has'
    """
    if all(state.kind != Kind.ROWS for state in states):
        return _without_rows(flow, operation, states)
    found = labels(operation)
    if found is None or any(len(state.axes) > 1 for state in states):
        return NO_CLAIM
    *factors, result = found
    with_rows = [
        (state, factor[state.axis]) for state, factor in zip(states, factors, strict=True) if state.kind == Kind.ROWS
    ]
    letters = {letter for _, letter in with_rows}
    flow.couple_values([state for state in states if not state.is_size], operation)
    if len(letters) > 1:
        return flow.couple(operation, PAIRS)
    letter = letters.pop()
    if any(state.kind == Kind.ALIKE and letter in factor and tensor.shape[factor.index(letter)] is not None
           for tensor, state, factor in zip(operation.inputs, states, factors, strict=True)):  # fmt: skip
        return flow.couple(operation, FIXED)
    together = aligned(flow, operation, states)
    if together is None:
        return NO_CLAIM
    degree = sum(state.degree for state, _ in with_rows) + sum(state.degree for state in states if state.is_size)
    if letter not in result:
        if any(state.kind not in (Kind.ALIKE, Kind.ROWS) and letter in factor
               for state, factor in zip(states, factors, strict=True)):  # fmt: skip
            # A matrix that has the examples along both axes gives each example a value.
            return NO_CLAIM
        return State(Kind.SUM, degree=degree + 1, origin=operation)
    return together._replace(axes=(result.index(letter),), degree=degree)


def _without_rows(flow: Any, operation: Any, states: Sequence[State]) -> State:
    sums = [state for state in states if state.kind == Kind.SUM]
    if len(sums) == 1 and all(state.kind in (Kind.SUM, "alike") for state in states):
        return sums[0]
    if any(state.kind == Kind.ONE for state in states):
        return arithmetic.element_wise(flow, operation, states)
    origin = arithmetic.origin_of(states)
    if origin is not None and not any(state.kind == Kind.UNKNOWN for state in states):
        return State(Kind.MIXED, origin=origin)
    return arithmetic.element_wise(flow, operation, states)
