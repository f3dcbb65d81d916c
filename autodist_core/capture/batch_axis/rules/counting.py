"""States of shapes and sizes, and of what is made in a size: numbers from 0 on, random numbers, tensors of one value.

In: the walk, an operation and the states of its inputs. Out: one state for all results, or a list of states. For `x`
with the examples along its first axis::

    Shape(x)                     a shape with the batch size at 0
    Range(0, batch size, 1)      the positions of the examples
    RandomNormal(Shape(x))       rows along axis 0
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.reduced import Mixed, Number, Size, size_in
from autodist_core.capture.batch_axis.states.reshaping import product, sizes_of
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, OTHER, SAME, Distinct, One, Rows, Sizes, State


def shape(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the shapes of tensors.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.shape(x))
    'a shape with the batch size at 0'
    """
    return [
        state.sizes(operation) if isinstance(state, Rows) and len(state.axes) == 1 else
        SAME if state == SAME else NO_CLAIM for state in states
    ]


def size(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the number of entries of a tensor.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.size(x))
    'a multiple of the number of examples'
    """
    state, sizes = states[0], sizes_of(operation.inputs[0].shape)
    if isinstance(state, Distinct):
        return Mixed(operation)
    if not isinstance(state, Rows):
        return NO_CLAIM
    others = [None] if sizes is None else [size for axis, size in enumerate(sizes) if axis not in state.axes]
    return size_in(replace(state.sizes(operation), times=product(others, state.each)))


def filled(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor that is filled with one value, or with random numbers.

    Examples are along the axis whose size is the batch size.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.fill(tf.shape(x), 0.5))
    'rows along axis 0'
    >>> shown(lambda x: (tf.random.normal(tf.shape(x)), tf.random.normal([4])))
    'rows along axis 0, alike'
    """
    shape, value = states[0], states[1] if operation.type == "Fill" else SAME
    if isinstance(shape, Sizes) and value != NO_CLAIM and not isinstance(value, One):
        found = Rows((shape.place,), outer=shape.times, subset=shape.subset, free=True)
        return scaled_by(flow, operation, found, value)
    if value != SAME:
        return value
    return Number(shape.origin) if shape.couples else SAME


def scaled_by(flow: Any, operation: Any, found: Rows, value: State) -> Rows:
    """Return the state of rows whose entries are all one value, which may grow with the number of examples.

    >>> scaled_by(None, "Fill", Rows(), Size()).degree
    1
    """
    if isinstance(value, Size):
        return replace(found, degree=value.degree, origin=operation) if value.degree else found
    flow.couple_values([value], operation)
    return found


def counted(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the numbers from 0 on: the positions of the examples if their count is the batch size.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.range(tf.shape(x)[0]), tf.range(3)))
    'rows along axis 0, alike'
    """
    first, _, step = (value_of(tensor) for tensor in operation.inputs)
    limit = states[1]
    if isinstance(limit, Size) and limit.degree == 1 and states[0] == SAME and first == 0 and step == 1:
        each = 1 if limit.times == 1 else None
        return Rows(outer=each, inner=each, stride=1 if each else OTHER, origin=operation)
    if all(state == SAME or isinstance(state, (Size, Number)) for state in states):
        return Number(operation)
    return NO_CLAIM
