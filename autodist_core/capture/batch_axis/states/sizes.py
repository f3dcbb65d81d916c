"""Functions of the number of examples: multiples and powers of it, and others.

In: an operation whose inputs are constants and sizes. Out: the state of the result. For a batch of n examples::

    Mul(n, 4)         a size, four times the number of examples
    FloorDiv(4n, 2)   a size, twice the number of examples
    FloorDiv(n, 2)    a number: the replicas' halves are other numbers than the batch's half
    Greater(n, 0)     the same on all replicas, as every replica that computes has an example
    Greater(n, 1)     a number
"""

from collections.abc import Callable, Sequence
from typing import Any

from autodist_core.capture.batch_axis.states import operations
from autodist_core.capture.batch_axis.states.constants import number_of
from autodist_core.capture.batch_axis.states.state import SAME, Kind, State

_NEGLIGIBLE = 1e-13
"""A constant under this limit is lost in the rounding of a sum over examples."""
_ENDLESS = 2**31 - 1
"""A constant from here on is larger than every batch."""
_SWAPPED = {"Less": "Greater", "Greater": "Less", "LessEqual": "GreaterEqual", "GreaterEqual": "LessEqual"}
"""What a comparison is if its inputs change places."""
_COMPARING = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual")


def function_of_sizes(operation: Any, states: Sequence[State]) -> State | None:
    """Return the state of a function of sizes and constants; None if the operation has another input, or no size.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.shape(x)[0] * 4, tf.shape(x)[0] // 2))
    'a multiple of the number of examples, number'
    """
    if not all(state.kind in (Kind.ALIKE, Kind.NUMBER) or state.is_size for state in states):
        return None
    origin = next((state.origin for state in states if state.kind == Kind.NUMBER), None)
    if origin is not None:
        return State(Kind.NUMBER, origin=origin)
    if all(state.kind == Kind.ALIKE for state in states):
        return None
    constants = [
        number_of(tensor) if state.kind == Kind.ALIKE else None
        for tensor, state in zip(operation.inputs, states, strict=False)
    ]
    rule = _RULES.get(operation.type)
    found = rule(operation, states, constants) if rule is not None else None
    return State(Kind.NUMBER, origin=operation) if found is None else found


def is_negligible(tensor: Any) -> bool:
    """Whether a tensor is a constant that is lost in rounding, and only keeps a divisor from zero.

    >>> import tensorflow as tf
    >>> is_negligible(tf.constant(1e-30)), is_negligible(tf.constant(1e-7))
    (True, False)
    """
    value = number_of(tensor)
    return value is not None and abs(value) < _NEGLIGIBLE


def _size(degree: int, times: float | None) -> State:
    if degree == 0:
        return State(Kind.SUM)
    return State(Kind.SUM, degree=degree, outer=int(times) if times is not None and times == int(times) else None)


def _added(operation: Any, states: Sequence[State], constants: Sequence[float | None]) -> State | None:
    sizes = [state for state in states if state.is_size]
    degrees = {state.degree for state in sizes}
    if len(degrees) > 1:
        return None
    if len(sizes) < len(states):
        small = all(
            is_negligible(tensor)
            for tensor, state in zip(operation.inputs, states, strict=False) if state.kind == Kind.ALIKE
        )
        return sizes[0] if small or degrees == {0} else None
    signs = [-1 if operation.type == "Sub" and at else 1 for at in range(len(states))]
    times = None
    if all(state.outer is not None for state in states):
        times = sum(sign * (state.outer or 0) for sign, state in zip(signs, states, strict=True))
    return SAME if times == 0 else _size(degrees.pop(), times)


def _multiplied(operation: Any, states: Sequence[State], constants: Sequence[float | None]) -> State | None:
    times: float | None = 1
    for state, constant in zip(states, constants, strict=False):
        each = state.outer if state.is_size else constant
        times = None if times is None or each is None else times * each
    return _size(sum(state.degree for state in states), times)


def _divided(operation: Any, states: Sequence[State], constants: Sequence[float | None]) -> State | None:
    (one, two), (first, second) = states, constants
    above, below = one.outer if one.is_size else first, two.outer if two.is_size else second
    whole = above is not None and below is not None and below != 0 and above % below == 0
    degree = one.degree - two.degree
    if operation.type in ("FloorDiv", "TruncateDiv") and not (whole and degree >= 0):
        return None
    if operation.type in ("FloorMod", "Mod", "TruncateMod"):
        return SAME if whole and degree >= 0 else None
    return _size(degree, above / below if whole and above is not None and below is not None else None)


def _compared(operation: Any, states: Sequence[State], constants: Sequence[float | None]) -> State | None:
    one, two = states
    if one.is_size and two.is_size:
        known = one.outer is not None or operation.inputs[0] is operation.inputs[1]
        return SAME if known and one.degree == two.degree and one.outer == two.outer else None
    size, limit = (one, constants[1]) if one.is_size else (two, constants[0])
    if limit is None or not size.is_size or size.degree < 1:
        return None
    least = 1 if size.outer is None else size.outer
    kind = operation.type if one.is_size else _SWAPPED.get(operation.type, operation.type)
    # Every replica has one example at least. The comparison is the same for all numbers of examples from there on.
    below = limit <= least if kind in ("Less", "GreaterEqual") else limit < least
    return SAME if below or limit >= _ENDLESS else None


def _larger(operation: Any, states: Sequence[State], constants: Sequence[float | None]) -> State | None:
    one, two = states
    if one == two:
        return one
    size = one if one.is_size else two
    known = next((constant for constant in constants if constant is not None), None)
    if known is None or one.is_size == two.is_size:
        return None
    harmless = known <= 1 if operation.type == "Maximum" else known >= _ENDLESS
    return size if harmless else None


def _same(operation: Any, states: Sequence[State], constants: Sequence[float | None]) -> State | None:
    state, dtype = states[0], operation.outputs[0].dtype
    if operation.type == "Neg":
        return state._replace(outer=None if state.outer is None else -state.outer)
    if operation.inputs[0].dtype.is_floating and not dtype.is_floating and state.outer is None:
        return None
    return SAME if dtype.is_bool else state


_RULES: dict[str, Callable[[Any, Sequence[State], Sequence[float | None]], State | None]] = {
    **dict.fromkeys(("Add", "AddV2", "AddN", "Sub"), _added),
    **dict.fromkeys(("Mul", "MulNoNan"), _multiplied),
    **dict.fromkeys(
        ("RealDiv", "Div", "DivNoNan", "FloorDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod"), _divided
    ),
    **dict.fromkeys(_COMPARING, _compared),
    **dict.fromkeys(("Maximum", "Minimum"), _larger),
    **dict.fromkeys(operations.SAME, _same),
}  # fmt: skip
