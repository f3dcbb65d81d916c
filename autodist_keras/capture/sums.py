"""Let numbers that a user's code makes of a batch count as sums over the examples, where they are sums.

In: a number, such as the loss that a loss function returns, and the `Trace` of a step. Out: the number as a mean over
the examples counts. For `tf.reduce_sum(losses) + penalty`, on a replica with n_r of N examples::

    Sum(losses) * (N / n_r) + penalty

Replica r's loss counts n_r/N, so the sum over the replicas is one device's number, and so is the number that is logged.
Only the finished trace tells which numbers are sums (see `mixing.py`). Then the step is traced again, and each term
whose degree is not 0 is multiplied. With one replica the factor is exactly 1. What a number is divided by may be a sum
over the whole batch, as of a mask: then the number is a sum, too.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.capture import Traced, computed_from, reached_from, sources, totals
from autodist_core.capture.batch_axis import SAME, Found, Linear, Nonlinear, State, Sum
from autodist_core.capture.gradients import Term, state_of_term, sum_of, terms_of, without


def with_totals(traced: Traced, seen: Any, followed: Callable[[Traced], Found]) -> Traced:
    """Return the step with what its numbers are divided by in `totals`; `followed` tells states of tensors.

    No gradient goes through what depends on no trained variable, as a mask of labels. Only this is taken.

    >>> from types import SimpleNamespace
    >>> from autodist_core.capture.example import example_traced
    >>> with_totals(example_traced(), SimpleNamespace(asked=(), numbers=()), lambda traced: Found()).totals
    ()
    """
    numbers = [each.made for each in seen.asked] + [term.tensor for terms, _ in seen.numbers for term in terms]
    trained = {each.variable for each in traced.gradients}
    captured = (placeholder for _, placeholder in traced.graph.captures)
    changing = computed_from(each for each in captured if traced.handles.get(each.op.name) in trained)

    def inexact(found: Found) -> list[Any]:
        return [each.op for each in numbers if isinstance(found.state_of(each), Nonlinear)]

    candidates = [
        each for each in traced.graph.get_operations() if each.type in totals.JOINING and each.name not in changing
    ]
    return totals.with_totals(traced, candidates, followed, inexact)


def degrees(trace: Any, state_of: Callable[[Any], State]) -> tuple[tuple[int | None, ...], ...]:
    """For each number of a step, the power of the batch size with which each of its terms grows.

    It is None for a term that is neither a sum nor a mean.

    >>> from types import SimpleNamespace
    >>> with tf.Graph().as_default():
    ...     value = tf.constant(1.0, name="total") + tf.constant(2.0)
    >>> trace = SimpleNamespace(seen=SimpleNamespace(known=(), numbers=[(terms_of(value), value)]))
    >>> degrees(trace, lambda tensor: Sum(int(tensor.op.name == "total")))
    ((1, 0),)
    """
    known = {id(tensor): state for tensor, state in trace.seen.known}

    def degree(term: Term) -> int | None:
        state = state_of_term(term, lambda tensor: known.get(id(tensor)) or state_of(tensor))
        return state.degree if isinstance(state, Linear) else 0 if state == SAME else None

    found = []
    for terms, counted_once in trace.seen.numbers:
        found.append(tuple(map(degree, terms)))
        if None not in found[-1]:
            # It counts as a mean where it is a term of another number.
            known[id(counted_once)] = Sum(0, counted_once.op)
    return tuple(found)


def looks_at_examples(value: Any) -> bool:
    """Whether a value depends on the step's data. A regularizer depends on variables alone.

    >>> with tf.Graph().as_default():
    ...     looks_at_examples(tf.constant(1.0)), looks_at_examples(2 * tf.compat.v1.placeholder(tf.float32))
    (False, True)
    """
    behind = reached_from([value.op], sources).values()
    return any(operation.type == "Placeholder" and operation.outputs[0].dtype != tf.resource for operation in behind)


def counted(value: Any, trace: Any) -> Any:
    """A number of a replica's examples, so that it counts as a mean over them; other values stay as they are.

    >>> from autodist_keras.capture.example import with_trace
    >>> def step(trace):
    ...     trace.degrees = ((1, 0),)
    ...     return counted(tf.constant(3.0) + tf.constant(1.0), trace)
    >>> with_trace(step)
    5.0
    """
    if not tf.is_symbolic_tensor(value) or value.shape.rank != 0 or value.graph is not trace.graph:
        return value
    if not value.dtype.is_floating or any(value is tensor for tensor, _ in trace.seen.known):
        return value
    data = {
        operation.name for operation in value.graph.get_operations()
        if operation.type == "Placeholder" and operation.outputs[0].dtype != tf.resource
    }
    numbers, known = trace.seen.numbers, trace.seen.known
    terms = terms_of(value, without(data), {id(tensor) for tensor, _ in known} | {id(each) for _, each in numbers})
    of_terms = trace.degrees[len(numbers)] if len(numbers) < len(trace.degrees) else ()
    if any(of_terms):
        counted_once = [
            tf.cast(term.tensor, value.dtype) * trace.inverse_share(value.dtype) ** (degree or 0)
            for term, degree in zip(terms, of_terms, strict=True)
        ]
        value = sum_of(terms, counted_once, value.dtype)
        if None not in of_terms:
            known.append((value, Sum(0, value.op)))
    # Keras's reduction of the number, of which the state is known, may be the number itself.
    numbers.append((terms, tf.identity(value)))
    return numbers[-1][1]
