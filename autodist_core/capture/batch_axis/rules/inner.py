"""Rules for operations that run other graphs: functions, conditionals and loops.

In: the states of the arguments. Out: the states of the results, after a walk over the graphs that the operation runs.
For a loop with one round for each example (see `rounds`)::

    While(list of x)     its body is walked over until the states of its results no longer change
    While(carry)         a coupling, if a round hands on to the next one what it made of its example

A result whose state a rule loses is named.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES, CHOICE, ENDS, SCALED
from autodist_core.capture.batch_axis.states.places import merged
from autodist_core.capture.batch_axis.states.reduced import Extreme, Linear, Mixed, Number, Size, Sum
from autodist_core.capture.batch_axis.states.rounds import Rounds, changing, is_handed_on, may_stay, rounds_of
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, OfExamples, One, Rows, State, Unknown
from autodist_core.capture.tape import graphs_of
from autodist_core.capture.traversal import behind
from autodist_core.step.op_types import CALLS, CASES, CONDITIONALS, LOOPS

_ROUNDS = 6
"""How many times a loop's body is walked over at most."""


def combined(one: State, other: State) -> State:
    """Return the state of a tensor that has one of two states, as the result of a conditional has.

    >>> combined(Rows((1,)), SAME).axes
    (1,)
    """
    if one == other or other == SAME:
        # A constant is the mean, the largest and the smallest of itself.
        kept = isinstance(one, (OfExamples, Extreme)) or (isinstance(one, Sum) and not one.degree)
        return one if kept or one == other else _either(one, other)
    if one == SAME:
        return combined(other, one)
    if isinstance(one, Rows) and isinstance(other, Rows) and one.axes == other.axes:
        if one.free or other.free:
            one, other = (other, one) if one.free else (one, other)
            return replace(one, stride=merged([one.stride, other.stride]), free=other.free and one.free)
        return replace(
            one, outer=one.outer if one.outer == other.outer else None,
            inner=one.inner if one.inner == other.inner else None,
            stride=merged([one.stride, other.stride]), free=False,
            subset=one.subset if one.subset == other.subset else (one.subset, other.subset),
        )
    if NO_CLAIM in (one, other) and (isinstance(one, Rows) or isinstance(other, Rows)):
        return one if isinstance(one, Rows) else other
    return _either(one, other)


def _either(one: State, other: State) -> State:
    if isinstance(one, Linear) and isinstance(other, Linear) and one.degree == other.degree:
        return one
    origin = next((state.origin for state in (one, other) if state.couples), None)
    if isinstance(one, (Number, Size)) and isinstance(other, (Number, Size)) and origin is not None:
        return Number(origin)
    return Mixed(origin) if origin is not None else NO_CLAIM


def call(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the results of a called function.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.function(lambda part: 2.0 * part)(x))
    'rows along axis 0'
    """
    graphs = graphs_of(operation)
    if not graphs:
        return _lost(flow, operation, states)
    # Whoever takes a gradient adds results to the function's graph, for values that the gradient uses again.
    results: list[State] = flow.run(graphs[0], states, operation)
    return results[: len(operation.outputs)]


def _lost(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return that nothing is known of the results, and name the operation if its inputs depend on the batch."""
    if any(state not in (SAME, NO_CLAIM) for state in states):
        flow.undecide(operation)
    return [NO_CLAIM] * len(operation.outputs)


def _merged(flow: Any, operation: Any, graph: Any, one: Sequence[State], other: Sequence[State]) -> list[State]:
    """Return the states of results that are one of two; name the operation if a state is lost."""
    found = [combined(*pair) for pair in zip(one, other, strict=True)]
    for at, state in enumerate(found):
        lost = state == NO_CLAIM and NO_CLAIM not in (one[at], other[at])
        if lost and not _is_of_gradient(flow, graph, at):
            flow.undecide(operation)
    return found


def _is_of_gradient(flow: Any, graph: Any, at: int) -> bool:
    """Whether a result is only for the gradient, as the list of a value of each round is."""
    tensor = graph.outputs[at]
    return tensor.dtype == tf.variant and bool(flow.tape.made(tensor.op))


def branches(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the results of a conditional.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.cond(tf.reduce_sum(tf.ones([3])) > 2, lambda: x, lambda: -x))
    'rows along axis 0'

    An assertion about all examples mixes none:

    >>> shown(lambda x: (tf.debugging.assert_less(x, 10.0), x)[1])
    'rows along axis 0'
    """
    choice, *handed = states
    graphs, writes = graphs_of(operation), flow.writes
    results = [flow.run(graph, handed, operation) for graph in graphs]
    if not results:
        return _lost(flow, operation, states)
    if asserts(operation) and flow.writes == writes:
        return [choice] * len(operation.outputs)
    if choice.couples and (operation.outputs or flow.writes > writes):
        coupled = flow.couple(choice.origin, SCALED if isinstance(choice, Number) else CHOICE, operation)
        return [coupled] * len(operation.outputs)
    if choice == NO_CLAIM:
        return [NO_CLAIM] * len(operation.outputs)
    found = results[0]
    for graph, other in zip(graphs[1:], results[1:], strict=True):
        found = _merged(flow, operation, graph, found, other)
    if isinstance(choice, One):
        return [_of_one(state) for state in found]
    return found if choice == SAME else _lost(flow, operation, states)


def asserts(operation: Any) -> bool:
    """Whether an operation is an assertion, or a conditional around one: it fails or not, and changes no number.

    All branches of such a conditional return what it decides on.

    >>> with tf.Graph().as_default() as graph:
    ...     x = tf.compat.v1.placeholder("float32", (None,))
    ...     with tf.control_dependencies([tf.debugging.assert_less(x, 10.0)]):
    ...         chosen = tf.cond(tf.reduce_all(x < 10.0), lambda: x, lambda: -x)
    ...     [(each.type, asserts(each)) for each in graph.get_operations() if "If" in each.type]
    [('If', True), ('StatelessIf', False)]
    """
    if operation.type not in CONDITIONALS:
        return bool(operation.type == "Assert")
    return all(_is_decided_on(operation, graph, tensor) for graph in graphs_of(operation) for tensor in graph.outputs)


def _is_decided_on(operation: Any, graph: Any, tensor: Any) -> bool:
    handed = zip(graph.inputs, operation.inputs[1:], strict=True)
    return any(inner is behind(tensor) and outer is operation.inputs[0] for inner, outer in handed)


def _of_one(state: State) -> State:
    """Return the state of a value that a value of one example decides on."""
    return One() if state == SAME else state


def loop(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the results of a loop.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, part: (i + 1, 2.0 * part), (0, x))[1])
    'rows along axis 0'
    """
    graphs, current = graphs_of(operation), list(states)
    if not graphs:
        return _lost(flow, operation, states)
    body, condition = graphs
    choice = flow.run(condition, current, operation)[0]
    rounds = rounds_of(flow, operation, body, condition) if flow.rounds is None else None
    before, repeats = flow.rounds, flow.repeats
    flow.rounds, flow.repeats = rounds or before, repeats or not isinstance(choice, (Alike, One))
    current = [rounds.place() if rounds and at in rounds.counters else state for at, state in enumerate(current)]
    for _ in range(_ROUNDS):
        after = _round(flow, operation, body, rounds, current)
        if after == current:
            break
        current = after
    else:
        flow.undecide(operation)
        current = [state if is_handed_on(body, at) else NO_CLAIM for at, state in enumerate(current)]
    flow.rounds, flow.repeats = before, repeats
    if rounds is None:
        return _after_rounds(flow, operation, graphs, flow.run(condition, current, operation)[0], current)
    return [
        Number(operation) if at in rounds.counters else
        state if tensor.dtype == tf.variant or is_handed_on(body, at) else
        _by_rounds(flow, operation, rounds.limit, state)
        for at, (tensor, state) in enumerate(zip(operation.outputs, current, strict=True))
    ]


def _round(flow: Any, operation: Any, body: Any, rounds: Rounds | None, current: Sequence[State]) -> list[State]:
    """Return the states after one more round."""
    results = flow.run(body, current, operation)
    for at, result in enumerate(results):
        if rounds is not None and at in rounds.counters:
            results[at] = current[at]
        elif rounds is not None and isinstance(result, One):
            if not _is_of_gradient(flow, body, at):
                flow.couple(operation, ALONG_EXAMPLES)
            results[at] = NO_CLAIM
    return _merged(flow, operation, body, current, results)


def _after_rounds(flow: Any, operation: Any, graphs: Sequence[Any], choice: State, current: list[State]) -> list[State]:
    """Return the states of the results of a loop that a condition ends."""
    body, condition = graphs
    if choice == SAME:
        return current
    changed = [at for at, tensor in enumerate(operation.outputs)
               if tensor.dtype != tf.variant and not is_handed_on(body, at)]  # fmt: skip
    if choice.couples and not isinstance(choice, Number):
        of_examples = [at for at in changed if isinstance(current[at], Rows)]
        ends = any(current[at] != SAME for at in changing(condition, body))
        if not ends or (of_examples and all(may_stay(body, at) for at in of_examples)):
            # Examples that are ready may stay as they are while the loop goes on for the others.
            flow.undecide(operation)
            return current
        flow.couple(choice.origin, ENDS, operation)
        return [state if at in of_examples or at not in changed else NO_CLAIM for at, state in enumerate(current)]
    for at in changed:
        if isinstance(choice, Number):
            current[at] = _by_rounds(flow, operation, choice.origin, current[at])
        else:
            current[at] = _of_one(current[at]) if isinstance(choice, One) else NO_CLAIM
    if not isinstance(choice, (Number, One, Unknown)):
        flow.undecide(operation)
    return current


def _by_rounds(flow: Any, operation: Any, limit: Any, state: State) -> State:
    """Return the state of a value that a loop changes as often as the batch has examples."""
    if state == SAME:
        return Number(operation)
    if isinstance(state, Rows):
        flow.couple(limit, SCALED, operation)
    elif state != NO_CLAIM:
        flow.undecide(operation)
    return NO_CLAIM


RULES: dict[str, Any] = {
    **dict.fromkeys(CALLS, call), **dict.fromkeys((*CONDITIONALS, *CASES), branches), **dict.fromkeys(LOOPS, loop),
}  # fmt: skip
