"""Find the sums and means over the examples that replicas need of the whole batch, to compute with them further.

In: a traced step, and the operations through which no gradient goes. Out: the same step with some of them in `totals`.
Over the replicas, their values are those of the whole batch, and what is computed from them is one device's::

    sum(losses * mask) / sum(mask)      sum(mask)
    returns - mean(returns)             mean(returns)
    sqrt(mean(errors)), a result        mean(errors)
    minimum(x, float(batch size))       float(batch size)

A sum or a mean that nothing else is computed from is joined when the step has run.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis import Found, Size, State, Sum
from autodist_core.capture.traced import Counted, Traced
from autodist_core.capture.traversal import reached_from, readers, sources

JOINING = ("Sum", "Mean")
"""The types of operations that make sums and means. The number of examples as a float is a `Cast`."""


def with_totals(
    traced: Traced, candidates: Collection[Any], followed: Callable[[Traced], Found],
    inexact: Callable[[Traced, Found], Iterable[Any]],
) -> Traced:
    """Return the step with those `candidates` in `totals` that `inexact` operations are computed from.

    `followed` says what the batch axis tells of a step, and `inexact` which operations are not one device's then.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis import follow
    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> traced, _ = recorded_trace(lambda x: tf.reduce_sum(x, name="number") / tf.reduce_sum(x * x, name="squares"))
    >>> outputs = [tensor.op for tensor in traced.outputs]
    >>> found = with_totals(traced, traced.graph.get_operations(), lambda step: follow(step, {}), lambda *_: outputs)
    >>> [each.name for each in found.totals]
    ['number', 'squares']
    """
    while candidates:
        found = followed(traced)
        needed = reached_from(inexact(traced, found), sources).keys() - {each.name for each in traced.totals}
        new = {
            operation: state for operation in candidates for state in [found.state_of(operation.outputs[0])]
            if operation.name in needed and _is_total(operation, state)
        }
        if not new:
            break
        # What is computed from a total is the whole batch's already, as a sum of sums.
        behind = reached_from([reader for each in new for reader in readers(each)], readers)
        new = {operation: state for operation, state in new.items() if operation.name not in behind}
        means = (each for each, state in new.items() if state.degree == 0)
        shares = {each.name: Counted(0, each.inputs[0].dtype.base_dtype, 1) for each in means}
        traced = replace(traced, totals=(*traced.totals, *new), counted={**traced.counted, **shares})
    return traced


def _is_total(operation: Any, state: State) -> bool:
    """Whether an operation makes a sum over the examples, their number as a float, or a mean of floats."""
    number = operation.outputs[0].dtype.is_floating or operation.outputs[0].dtype.is_complex
    if operation.type == "Cast":
        return number and isinstance(state, Size) and state.degree == 1
    return isinstance(state, Sum) and state.degree in ((0, 1) if number else (1,))
