"""Products that sum over axes: of matrices, and einsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autodist_core.capture.batch_axis import arithmetic
from autodist_core.capture.batch_axis.finding import PAIRS, WHOLE
from autodist_core.capture.batch_axis.reshaping import labels
from autodist_core.capture.batch_axis.state import MIXED, NO_CLAIM, ONE, ROWS, SUM, State


def product(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A product of two tensors, summed over the axes that its result lacks."""
    if all(state.kind != ROWS for state in states):
        return _without_rows(flow, operation, states)
    found = labels(operation)
    if found is None or any(len(state.axes) > 1 for state in states):
        return NO_CLAIM
    *factors, result = found
    stands = [
        (state, factor[state.axis]) for state, factor in zip(states, factors, strict=True) if state.kind == ROWS
    ]
    letters = {letter for _, letter in stands}
    for state in states:
        if state.couples:
            flow.couple(state.origin, WHOLE, operation)
    if len(letters) > 1:
        flow.couple(operation, PAIRS, operation)
        return NO_CLAIM
    letter = letters.pop()
    degree = sum(state.degree for state, _ in stands) + sum(state.degree for state in states if state.is_size)
    if letter not in result:
        return State(SUM, degree=degree + 1, origin=operation)
    first = stands[0][0]
    same = len(stands) == 1 or stands[1][0].inner == first.inner
    return first._replace(axes=(result.index(letter),), degree=degree, inner=first.inner if same else None)


def _without_rows(flow: Any, operation: Any, states: Sequence[State]) -> State:
    sums = [state for state in states if state.kind == SUM]
    if len(sums) == 1 and all(state.kind in (SUM, "alike") for state in states):
        return sums[0]
    if any(state.kind == ONE for state in states):
        return arithmetic.element_wise(flow, operation, states)
    origin = arithmetic.origin_of(states)
    if origin is not None and not any(state.kind == "unknown" for state in states):
        return State(MIXED, origin=origin)
    return arithmetic.element_wise(flow, operation, states)
