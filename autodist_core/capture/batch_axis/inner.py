"""Rules for operations that run other graphs, and for the lists that loops read and write.

In: the states of the arguments. Out: the states of the results, after a walk over the graphs that the operation runs.
For a loop that takes one example in each round::

    While(list of x)     its body is walked over until the states of its results no longer change
    TensorListGetItem    one: the element belongs to one example
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.finding import ALONG_EXAMPLES, CHOICE, SCALED
from autodist_core.capture.batch_axis.places import OTHER, merged
from autodist_core.capture.batch_axis.state import (
    ALIKE,
    MIXED,
    NO_CLAIM,
    NUMBER,
    ONE,
    ROWS,
    SAME,
    SUM,
    UNKNOWN,
    State,
    rows,
)
from autodist_core.capture.tape import graphs_of

_ROUNDS = 6
"""How many times a loop's body is walked over at most."""


def combined(one: State, other: State) -> State:
    """Return the state of a tensor that has one of two states, as the result of a conditional has.

    >>> combined(rows(0), SAME).kind
    'rows'
    """
    if one == other or other.kind == ALIKE:
        return one if one.kind in (ROWS, ONE, ALIKE) or one == other else _either(one, other)
    if one.kind == ALIKE:
        return combined(other, one)
    if one.kind == ROWS and other.kind == ROWS and one.axes == other.axes:
        return one._replace(
            outer=one.outer if one.outer == other.outer else None,
            inner=one.inner if one.inner == other.inner else None,
            stride=merged([one.stride, other.stride]), subset=one.subset or other.subset,
        )
    if UNKNOWN in (one.kind, other.kind) and ROWS in (one.kind, other.kind):
        return one if one.kind == ROWS else other
    return _either(one, other)


def _either(one: State, other: State) -> State:
    if one.kind == SUM and other.kind == SUM and one.degree == other.degree:
        return one
    origin = next((state.origin for state in (one, other) if state.couples), None)
    if all(state.kind == NUMBER or state.is_size for state in (one, other)) and origin is not None:
        return State(NUMBER, origin=origin)
    return State(MIXED, origin=origin) if origin is not None else NO_CLAIM


def _graphs(operation: Any) -> list[Any] | None:
    """Return the graphs that an operation runs; None where TensorFlow has definitions only, as for its CTC loss."""
    try:
        return graphs_of(operation)
    except AttributeError:
        return None


def call(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the results of a called function.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.function(lambda part: 2.0 * part)(x))
    'rows along axis 0'
    """
    graphs = _graphs(operation)
    return flow.run(graphs[0], states, operation) if graphs else [NO_CLAIM] * len(operation.outputs)


def branches(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the results of a conditional.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.cond(tf.reduce_sum(tf.ones([3])) > 2, lambda: x, lambda: -x))
    'rows along axis 0'
    """
    choice, *handed = states
    results = [flow.run(graph, handed, operation) for graph in _graphs(operation) or ()]
    if not results:
        return [NO_CLAIM] * len(operation.outputs)
    if choice.couples and operation.outputs:
        flow.couple(choice.origin, SCALED if choice.kind == NUMBER else CHOICE, operation)
        return [NO_CLAIM] * len(operation.outputs)
    found = results[0]
    for other in results[1:]:
        found = [combined(*pair) for pair in zip(found, other, strict=True)]
    return found


def loop(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the results of a loop.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, part: (i + 1, 2.0 * part), (0, x))[1])
    'rows along axis 0'
    """
    graphs, current = _graphs(operation), list(states)
    if not graphs:
        return [NO_CLAIM] * len(operation.outputs)
    for _ in range(_ROUNDS):
        results = flow.run(graphs[0], current, operation)
        for position, result in enumerate(results):
            if result.kind == ONE and operation.outputs[position].dtype != tf.variant:
                flow.couple(operation, ALONG_EXAMPLES, operation)
                results[position] = NO_CLAIM
        after = [combined(*pair) for pair in zip(current, results, strict=True)]
        if after == current:
            break
        current = after
    choice = flow.run(graphs[1], current, operation)[0]
    if not choice.couples:
        return current
    if choice.kind != NUMBER:
        # Examples that are ready may stay as they are while the loop goes on for the others.
        flow.undecide(operation)
        return current
    for at, tensor in enumerate(operation.outputs):
        if tensor.dtype != tf.variant and not _is_handed_on(graphs[0], at):
            current[at] = _by_rounds(flow, operation, choice, current[at])
    return current


def _is_handed_on(body: Any, at: int) -> bool:
    """Whether each round of a loop leaves a value as it is."""
    tensor = body.outputs[at]
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor is body.inputs[at]


def _by_rounds(flow: Any, operation: Any, choice: State, state: State) -> State:
    """Return the state of a value that a loop changes as often as the batch has examples."""
    if state.kind == ALIKE:
        return State(NUMBER, origin=operation)
    if state.kind == ROWS:
        flow.couple(choice.origin, SCALED, operation)
    return NO_CLAIM


def put(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a list into which an element is put.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 2).write(0, x).write(1, x).stack())
    'rows along axis 1'
    """
    here, item = states[0], states[-1]
    if item.kind == ROWS:
        item = item.at(*(axis + 1 for axis in item.axes))
    elif item.kind == ONE:
        item = rows(0, stride=item.stride, origin=item.origin)
    return combined(here, item)


def got(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of one element of a list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 1).write(0, x).read(0))
    'rows along axis 0'
    """
    state = states[0]
    if state.kind != ROWS:
        return state
    if 0 in state.axes:
        return State(ONE, stride=OTHER if state.stride else 0, origin=state.origin)
    return state.at(*(axis - 1 for axis in state.axes))


def popped(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of a list without its last element, and of that element."""
    return [states[0], got(flow, operation, states)]


def listed(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a list made from a tensor, or of a tensor made from a list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 3).unstack(tf.transpose(x)).stack())
    'rows along axis 1'
    """
    return states[0]


def length(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the length of a list.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.TensorArray(tf.float32, 3).unstack(tf.transpose(x)).size())
    'alike'
    """
    return NO_CLAIM if states[0].kind == ROWS and 0 in states[0].axes else SAME


RULES: dict[str, Any] = {
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), call),
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), branches),
    **dict.fromkeys(("While", "StatelessWhile"), loop),
    **dict.fromkeys(("TensorListSetItem", "TensorListPushBack"), put),
    "TensorListGetItem": got, "TensorListPopBack": popped, "TensorListLength": length,
    **dict.fromkeys(("TensorListFromTensor", "TensorListStack", "TensorListResize"), listed),
    **dict.fromkeys(("TensorListGather", "TensorListConcatV2"), listed),
}  # fmt: skip
