"""Let numbers that a user's code makes of a batch count as sums over the examples, where they are sums.

In: a number, such as the loss that a loss function returns, and the `Trace` of a step. Out: the number as a mean over
the examples counts. For `tf.reduce_sum(losses) + penalty`, on a replica with n_r of N examples::

    Sum(losses) * (N / n_r) + penalty

Replica r's loss counts n_r/N, so the sum over the replicas is one device's number, and so is the number that is logged.
Only the finished trace tells which numbers are sums (see `mixing.py`). Then the step is traced again, and each term
whose degree is not 0 is multiplied. With one replica the factor is exactly 1.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.capture import reached_from, sources
from autodist_core.capture.batch_axis import SAME, Linear, State, Sum
from autodist_core.capture.gradients import Term, state_of_term, sum_of, terms_of, without


def degrees(trace: Any, state_of: Callable[[Any], State]) -> tuple[tuple[int | None, ...], ...]:
    """For each number of a step, the power of the batch size with which each of its terms grows.

    It is None for a term that is neither a sum nor a mean.

    >>> from types import SimpleNamespace
    >>> with tf.Graph().as_default():
    ...     terms = terms_of(tf.constant(1.0, name="total") + tf.constant(2.0))
    >>> trace = SimpleNamespace(seen=SimpleNamespace(known=(), numbers=[terms]))
    >>> degrees(trace, lambda tensor: Sum(int(tensor.op.name == "total")))
    ((1, 0),)
    """
    known = {id(tensor): state for tensor, state in trace.seen.known}

    def degree(term: Term) -> int | None:
        state = state_of_term(term, lambda tensor: known.get(id(tensor)) or state_of(tensor))
        return state.degree if isinstance(state, Linear) else 0 if state == SAME else None

    return tuple(tuple(map(degree, terms)) for terms in trace.seen.numbers)


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
    terms = terms_of(value, without(data), {id(tensor) for tensor, _ in trace.seen.known})
    trace.seen.numbers.append(terms)
    place = len(trace.seen.numbers) - 1
    of_terms = trace.degrees[place] if place < len(trace.degrees) else ()
    if not any(of_terms):
        return tf.identity(value)  # Keras's reduction of it, of which the state is known, may be the number itself
    counted_once = [
        tf.cast(term.tensor, value.dtype) * trace.inverse_share(value.dtype) ** (degree or 0)
        for term, degree in zip(terms, of_terms, strict=True)
    ]
    result = sum_of(terms, counted_once, value.dtype)
    if None not in of_terms:
        trace.seen.known.append((result, Sum(0, result.op)))
    return tf.identity(result)
