"""Positions of examples in the batch, and what an operation makes of them.

In: an operation, the states of its inputs, and the states that its rule gave the results. Some inputs are positions.
Out: the states of the results. Replicas count the examples of their slice from zero, so a position may only say which
entries of a tensor belong to an example. For positions p = 0, 1, 2, ... and a tensor `x` of rows with 4 entries each::

    Mul(p, 4)                stride 4: where in the entries of x each example begins
    AddV2(Mul(p, 4), label)  stride 4: one entry of each example
    FloorDiv(p, 2)           stride -1: the position of another example
    Mul(x, p)                a coupling: each example gets a value of its place
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis.states import operations
from autodist_core.capture.batch_axis.states.constants import number_of
from autodist_core.capture.batch_axis.states.finding import PLACE
from autodist_core.capture.batch_axis.states.reduced import Number, Reduced
from autodist_core.capture.batch_axis.states.state import OTHER, SAME, Alike, OfExamples, Rows, State

UNKNOWN_STRIDE = -2
"""The stride of positions times a size that is not known before a step."""


def merged(strides: Sequence[int]) -> int:
    """Return the stride of a tensor that has positions of these strides, and values that are none.

    >>> merged([1, 0]), merged([1, 3]), merged([0, 0])
    (1, -1, 0)
    """
    found = {stride for stride in strides if stride}
    return found.pop() if len(found) == 1 else OTHER if found else 0


def followed(flow: Any, operation: Any, states: Sequence[State], found: Sequence[State]) -> list[State]:
    """Return the states of an operation's results, where positions are among its inputs.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: x[:, 0] * tf.range(tf.cast(tf.shape(x)[0], tf.float32)))
    'unknown; Range gives each example a value of its place in the batch'
    """
    kind = operation.type
    if kind in operations.MOVING or (kind in ("Select", "SelectV2") and any(found[0] is state for state in states[1:])):
        return list(found)
    if kind in operations.SPARSE_TO_DENSE and isinstance(found[0], Rows):
        return list(found)
    placed = next(state for state in states if state.stride)
    stride = _STRIDES[kind](operation, states) if kind in _STRIDES else OTHER
    if stride is None:
        return [SAME] * len(found)
    if stride == OTHER and any(isinstance(state, OfExamples) and not state.stride for state in states):
        return [flow.couple(placed.origin or operation, PLACE, operation)] * len(found)
    return [_result(operation, placed, state, stride) for state in found]


def _result(operation: Any, placed: State, state: State, stride: int) -> State:
    if isinstance(state, OfExamples):
        return replace(state, stride=stride, origin=(placed.origin or operation) if stride else None)
    return Number(operation) if isinstance(state, Reduced) else state


def _added(operation: Any, states: Sequence[State]) -> int:
    placed = [state.stride for state in states if state.stride]
    if len(placed) > 1 or (operation.type == "Sub" and not states[0].stride):
        return OTHER
    stride = placed[0]
    for tensor, state in zip(operation.inputs, states, strict=True):
        if state.stride:
            continue
        constant = number_of(tensor) if state == SAME else None
        if constant is None:
            within = isinstance(state, (Alike, OfExamples)) and stride not in (1, OTHER)
        else:
            within = constant == 0 or 0 < constant < stride or (constant > 0 and stride == UNKNOWN_STRIDE)
        if not within:
            return OTHER
    return stride


def _multiplied(operation: Any, states: Sequence[State]) -> int:
    other = 1 if states[0].stride else 0
    if states[other] != SAME or states[1 - other].stride == OTHER:
        return OTHER
    factor = number_of(operation.inputs[other])
    if factor is None:
        return UNKNOWN_STRIDE if operation.inputs[other].shape.rank == 0 else OTHER
    stride = states[1 - other].stride
    return OTHER if factor <= 0 or factor % 1 else int(stride * factor) if stride > 0 else stride


def _divided(operation: Any, states: Sequence[State]) -> int:
    divisor = number_of(operation.inputs[1]) if states[1] == SAME else None
    stride = states[0].stride
    if divisor is None or divisor <= 0 or stride <= 0 or stride % divisor:
        return OTHER
    # The remainder has no more of the position in it.
    return 0 if operation.type in ("FloorMod", "Mod") else int(stride // divisor)


def _chosen(operation: Any, states: Sequence[State]) -> int:
    """TensorFlow takes the first entry for each example, where a tensor has only one."""
    placed = [state.stride for state in states[1:] if state.stride]
    others = [tensor for tensor, state in list(zip(operation.inputs, states, strict=True))[1:] if not state.stride]
    first = all(number_of(tensor) == 0 for tensor in others)
    return placed[0] if states[0] == SAME and len(placed) == 1 and first else OTHER


def _compared(operation: Any, states: Sequence[State]) -> int | None:
    """Return None for a comparison that is the same for all positions, such as whether a position is negative."""
    limit = number_of(operation.inputs[1]) if states[1] == SAME else None
    trivial = limit is not None and limit <= 0 and operation.type in ("Less", "GreaterEqual") and states[0].stride > 0
    return None if trivial else OTHER


_STRIDES: dict[str, Any] = {
    **dict.fromkeys(("Add", "AddV2", "Sub"), _added), "Mul": _multiplied,
    **dict.fromkeys(("FloorDiv", "FloorMod", "Mod"), _divided),
    **dict.fromkeys(("Less", "GreaterEqual"), _compared), **dict.fromkeys(("Select", "SelectV2"), _chosen),
}  # fmt: skip
"""For a type of operation, the stride of the result."""
