"""Functions of the number of examples: multiples and powers of it, and others.

In: an operation whose inputs are constants and sizes. Out: the state of the result. For a batch of n examples::

    Mul(n, 4)         a size, four times the number of examples
    FloorDiv(4n, 2)   a size, twice the number of examples
    FloorDiv(n, 2)    a number: the replicas' halves are other numbers than the batch's half
    Greater(n, 0)     the same on all replicas, as every replica that computes has an example
    Greater(n, 1)     a number
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from autodist_core.capture.batch_axis.states import operations
from autodist_core.capture.batch_axis.states.constants import number_of
from autodist_core.capture.batch_axis.states.reduced import Number, Size
from autodist_core.capture.batch_axis.states.state import SAME, Alike, State

_NEGLIGIBLE = 1e-13
"""A constant under this limit is lost in the rounding of a sum over examples."""
_ENDLESS = 2**31 - 1
"""A constant from here on is larger than every batch."""
_SWAPPED = {"Less": "Greater", "Greater": "Less", "LessEqual": "GreaterEqual", "GreaterEqual": "LessEqual"}
"""What a comparison is if its inputs change places."""
_COMPARING = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual")
_Factors = Sequence[float | None]
"""For each input the constant, or by what constant a size is multiplied; None for those that are not known."""


def function_of_sizes(operation: Any, states: Sequence[State]) -> State | None:
    """Return the state of a function of sizes and constants; None if the operation has another input, or no size.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.shape(x)[0] * 4, tf.shape(x)[0] // 2))
    'a multiple of the number of examples, number'
    >>> shown(lambda x: (2 * tf.size(x[:, 0]) // tf.size(x[:, 0]) * tf.size(x[:, 0]), tf.shape(x)[::2]))
    'a multiple of the number of examples, unknown; StridedSlice is not decided'
    """
    if not all(isinstance(state, (Alike, Number, Size)) for state in states):
        return None
    number = next((state for state in states if isinstance(state, Number)), None)
    if number is not None or all(state == SAME for state in states):
        return number
    factors = [
        state.times if isinstance(state, Size) else number_of(tensor)
        for tensor, state in zip(operation.inputs, states, strict=False)
    ]
    rule = _RULES.get(operation.type)
    found = rule(operation, states, factors) if rule is not None else None
    return Number(operation) if found is None else found


def settled(operation: Any, state: State) -> State:
    """The state of an input as an operation's rule gets it. A quotient of sizes is alike, unless its value matters.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     settled(tf.range(3).op, Size(0, 2)), settled(tf.multiply(3, 2).op, Size(0, 2))
    (Alike(), Size(degree=0, times=2))
    """
    return SAME if isinstance(state, Size) and not state.degree and operation.type not in _RULES else state


def is_negligible(tensor: Any) -> bool:
    """Whether a tensor is a constant that is lost in rounding, and only keeps a divisor from zero.

    >>> import tensorflow as tf
    >>> is_negligible(tf.constant(1e-30)), is_negligible(tf.constant(1e-7))
    (True, False)
    """
    value = number_of(tensor)
    return value is not None and abs(value) < _NEGLIGIBLE


def _size(degree: int, times: float | None) -> Size:
    return Size(degree, int(times) if times is not None and times == int(times) else None)


def _added(operation: Any, states: Sequence[State], factors: _Factors) -> State | None:
    sizes = [state for state in states if isinstance(state, Size)]
    degrees = {size.degree for size in sizes}
    if len(degrees) > 1:
        return None
    if len(sizes) < len(states):
        constants = [tensor for tensor, state in zip(operation.inputs, states, strict=False) if state == SAME]
        negligible = all(is_negligible(tensor) for tensor in constants)
        return sizes[0] if negligible else Size(0, None) if degrees == {0} else None
    known = [factor for factor in factors if factor is not None]
    times = None if len(known) < len(factors) else known[0] - sum(known[1:]) if operation.type == "Sub" else sum(known)
    return SAME if times == 0 else _size(degrees.pop(), times)


def _multiplied(operation: Any, states: Sequence[State], factors: _Factors) -> Size:
    known = [factor for factor in factors if factor is not None]
    return _size(sum(state.degree for state in states), prod(known) if len(known) == len(factors) else None)


def _divided(operation: Any, states: Sequence[State], factors: _Factors) -> State | None:
    above, below = factors
    times = above / below if above is not None and below and above % below == 0 else None
    degree = states[0].degree - states[1].degree
    if operation.type in ("FloorDiv", "TruncateDiv") and (times is None or degree < 0):
        return None
    if operation.type in ("FloorMod", "Mod", "TruncateMod"):
        return None if times is None or degree < 0 else SAME
    return _size(degree, times)


def _compared(operation: Any, states: Sequence[State], factors: _Factors) -> State | None:
    one, two = states
    if isinstance(one, Size) and isinstance(two, Size):
        return SAME if one == two and (one.times is not None or operation.inputs[0] is operation.inputs[1]) else None
    (times, limit), degree = (factors, one.degree) if isinstance(one, Size) else (factors[::-1], two.degree)
    if limit is None or degree < 1:
        return None
    least = 1 if times is None else times
    kind = operation.type if isinstance(one, Size) else _SWAPPED.get(operation.type, operation.type)
    # Every replica has one example at least. The comparison is the same for all numbers of examples from there on.
    below = limit <= least if kind in ("Less", "GreaterEqual") else limit < least
    return SAME if below or limit >= _ENDLESS else None


def _larger(operation: Any, states: Sequence[State], factors: _Factors) -> State | None:
    one, two = states
    if one == two:
        return one
    if isinstance(one, Size) and isinstance(two, Size):
        return None
    size, limit = (one, factors[1]) if isinstance(one, Size) else (two, factors[0])
    harmless = limit is not None and (limit <= 1 if operation.type == "Maximum" else limit >= _ENDLESS)
    return size if harmless else None


def _same(operation: Any, states: Sequence[State], factors: _Factors) -> State | None:
    state, times, dtype = states[0], factors[0], operation.outputs[0].dtype
    if operation.type == "Neg":
        return Size(state.degree, None if times is None else -int(times))
    if operation.inputs[0].dtype.is_floating and not dtype.is_floating and times is None:
        return None
    return SAME if dtype.is_bool else state


_RULES: dict[str, Callable[[Any, Sequence[State], _Factors], State | None]] = {
    **dict.fromkeys(("Add", "AddV2", "AddN", "Sub"), _added),
    **dict.fromkeys(("Mul", "MulNoNan"), _multiplied),
    **dict.fromkeys(
        ("RealDiv", "Div", "DivNoNan", "FloorDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod"), _divided
    ),
    **dict.fromkeys(_COMPARING, _compared),
    **dict.fromkeys(("Maximum", "Minimum"), _larger),
    **dict.fromkeys(operations.SAME, _same),
}  # fmt: skip
