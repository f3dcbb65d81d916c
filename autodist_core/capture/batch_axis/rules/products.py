"""Rules for products that sum over axes: products of matrices, and einsum.

In: the states of the factors. Out: the state of the product. For `x` with the examples along its first axis, and a
kernel `w` that is alike on all replicas::

    MatMul(x, w)             rows along axis 0
    MatMul(x, transposed x)  a coupling: it pairs the examples with each other
    MatMul(transposed x, x)  a sum over the examples
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis.rules import arithmetic
from autodist_core.capture.batch_axis.states.finding import FIXED, PAIRS
from autodist_core.capture.batch_axis.states.layout import aligned
from autodist_core.capture.batch_axis.states.reduced import Linear, Mixed, Size, Sum
from autodist_core.capture.batch_axis.states.reshaping import labels
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, One, Rows, State


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
    with_rows = [state for state in states if isinstance(state, Rows)]
    if not with_rows:
        return _without_rows(flow, operation, states)
    found = labels(operation)
    if found is None or any(len(state.axes) > 1 for state in with_rows):
        return NO_CLAIM
    *factors, result = found
    letters = {factor[state.axis] for state, factor in zip(states, factors, strict=True) if isinstance(state, Rows)}
    flow.couple_values([state for state in states if not isinstance(state, Size)], operation)
    if len(letters) > 1:
        return flow.couple(operation, PAIRS)
    letter = letters.pop()
    if any(state == SAME and letter in factor and tensor.shape[factor.index(letter)] is not None
           for tensor, state, factor in zip(operation.inputs, states, factors, strict=True)):  # fmt: skip
        return flow.couple(operation, FIXED)
    together = aligned(flow, operation, states)
    if together is None:
        return NO_CLAIM
    degree = sum(state.degree for state in states if isinstance(state, (Rows, Size)))
    if letter not in result:
        if any(not isinstance(state, (Alike, Rows)) and letter in factor
               for state, factor in zip(states, factors, strict=True)):  # fmt: skip
            # A matrix that has the examples along both axes gives each example a value.
            return NO_CLAIM
        return Sum(degree + 1, operation)
    return replace(together, axes=(result.index(letter),), degree=degree)


def _without_rows(flow: Any, operation: Any, states: Sequence[State]) -> State:
    sums = [state for state in states if isinstance(state, Linear)]
    if len(sums) == 1 and all(isinstance(state, (Linear, Alike)) for state in states):
        return sums[0]
    origin = arithmetic.origin_of(states)
    if origin is not None and NO_CLAIM not in states and not any(isinstance(state, One) for state in states):
        return Mixed(origin)
    return arithmetic.element_wise(flow, operation, states)
