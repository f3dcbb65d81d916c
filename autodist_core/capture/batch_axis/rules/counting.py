"""States of shapes and sizes, and of what is made in a size: numbers from 0 on, random numbers, tensors of one value.

In: the walk, an operation and the states of its inputs. Out: one state for all results, or a list of states. For `x`
with the examples along its first axis::

    Shape(x)                     a shape with the batch size at 0
    Range(0, batch size, 1)      the positions of the examples
    RandomNormal(Shape(x))       rows along axis 0
"""

from collections.abc import Sequence
from typing import Any

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.places import OTHER
from autodist_core.capture.batch_axis.states.reshaping import product, sizes_of
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Kind, State, rows


def shape(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the shapes of tensors.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.shape(x))
    'a shape with the batch size at 0'
    """
    found = []
    for state in states:
        if state.kind == Kind.ROWS and len(state.axes) == 1:
            origin = operation if state.subset else None
            found.append(State(Kind.SIZES, state.axes, outer=state.each, origin=origin, subset=state.subset))
        else:
            found.append(SAME if state.kind == Kind.ALIKE else NO_CLAIM)
    return found


def size(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the number of entries of a tensor.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.size(x))
    'a multiple of the number of examples'
    """
    if states[0].kind == Kind.DISTINCT:
        return State(Kind.MIXED, origin=operation)
    if states[0].kind != Kind.ROWS:
        return NO_CLAIM
    return State(
        Kind.SUM, degree=1, outer=product(_others(operation.inputs[0].shape, states[0].axes), states[0].each),
        origin=operation if states[0].subset else None,
    )


def _others(shape: Any, axes: Sequence[int]) -> list[int | None]:
    sizes = sizes_of(shape)
    return [None] if sizes is None else [size for axis, size in enumerate(sizes) if axis not in axes]


def drawn(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of random numbers: examples are along the axis whose size is the batch size.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.random.normal(tf.shape(x)), tf.random.normal([4])))
    'rows along axis 0, alike'
    """
    return filled(flow, operation, states[:1])


def filled(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor that is filled with one value.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.fill(tf.shape(x), 0.5))
    'rows along axis 0'
    """
    shape, value = states[0], states[1] if len(states) > 1 else SAME
    if shape.kind == Kind.SIZES and value.kind not in (Kind.ROWS, Kind.ONE, Kind.UNKNOWN):
        if not value.is_size:
            flow.couple_values([value], operation)
        return rows(shape.axes[0], outer=shape.outer, subset=shape.subset, free=True, **scaled_by(value, operation))
    if value.kind != Kind.ALIKE:
        return value
    return State(Kind.NUMBER, origin=states[0].origin) if states[0].couples else SAME


def scaled_by(value: State, operation: Any) -> dict[str, Any]:
    """Return what rows whose entries are all one value have of a value that grows with the number of examples.

    >>> scaled_by(State(Kind.SUM, degree=1), "Fill"), scaled_by(SAME, "Fill")
    ({'degree': 1, 'origin': 'Fill'}, {})
    """
    return {"degree": value.degree, "origin": operation} if value.is_size and value.degree else {}


def counted(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the numbers from 0 on: the positions of the examples if their count is the batch size.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.range(tf.shape(x)[0]), tf.range(3)))
    'rows along axis 0, alike'
    """
    if all(state.kind == Kind.ALIKE for state in states):
        return SAME
    first, _, step = (value_of(tensor) for tensor in operation.inputs)
    limit = states[1]
    if limit.is_size and limit.degree == 1 and states[0].kind == Kind.ALIKE and first == 0 and step == 1:
        stride = 1 if limit.outer == 1 else OTHER
        return rows(0, outer=1 if limit.outer == 1 else None, inner=1 if limit.outer == 1 else None,
                    stride=stride, origin=operation)
    if all(state.kind == Kind.ALIKE or state.is_size or state.kind == Kind.NUMBER for state in states):
        return State(Kind.NUMBER, origin=operation)
    return NO_CLAIM
