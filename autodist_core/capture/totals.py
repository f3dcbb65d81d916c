"""Find the sums and means over the examples that replicas need of the whole batch, to compute with them further.

In: a traced step, and the operations through which no gradient goes. Out: the same step with some of them in `totals`.
Over the replicas, their values are those of the whole batch, and what is computed from them is one device's::

    sum(losses * mask) / sum(mask)      sum(mask)
    returns - mean(returns)             mean(returns)
    sqrt(mean(errors)), a result        mean(errors)
    minimum(x, float(batch size))       float(batch size)

A sum or a mean that nothing else is computed from is joined when the step has run.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis import Found, Size, State, Sum
from autodist_core.capture.traced import Counted, Traced
from autodist_core.capture.traversal import reached_from, readers, sources

JOINING = ("Sum", "Mean")
"""The types of operations that make sums and means. The number of examples as a float is a `Cast`."""


def with_totals(
    traced: Traced, candidates: Collection[Any], followed: Callable[[Traced], Found],
    inexact: Callable[[Found], Iterable[Any]], always: Sequence[Any] = (),
) -> Traced:
    """Return the step with those `candidates` in `totals` that make `inexact` operations one device's.

    `followed` says what the batch axis tells of a step, and `inexact` which operations are not one device's then. What
    `always` is computed from is taken in any case. An operation that stays inexact keeps the replica's own numbers:
    it would be further from one device's if some of them were the whole batch's.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis import Nonlinear, follow
    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> traced, _ = recorded_trace(lambda x: tf.reduce_sum(x, name="number") / tf.reduce_sum(x * x, name="squares"))
    >>> (result,) = traced.outputs
    >>> def inexact(found):
    ...     return [result.op] if isinstance(found.state_of(result), Nonlinear) else []
    >>> operations = traced.graph.get_operations()
    >>> found = with_totals(traced, operations, lambda step: follow(step, {}), inexact)
    >>> number, squares = found.totals
    >>> number.name, squares.name, with_totals(traced, [number], lambda step: follow(step, {}), inexact).totals
    ('number', 'squares', ())
    """
    degrees: dict[Any, int] = {}
    wanted: dict[str, Any] = {}
    while candidates:
        found = followed(replace(traced, totals=tuple(degrees)))
        left = {operation.name: operation for operation in inexact(found)}
        wanted |= left
        needed = reached_from([*always, *left.values()], sources)
        new = {
            operation: state.degree for operation in candidates for state in [found.state_of(operation.outputs[0])]
            if operation.name in needed and operation not in degrees and _is_total(operation, state)
        }
        if not new:
            mended = reached_from([*always, *(each for name, each in wanted.items() if name not in left)], sources)
            degrees = {each: degrees[each] for each in degrees if each.name in mended}
            shares = {one.name: Counted(0, one.inputs[0].dtype.base_dtype, 1) for one in degrees if not degrees[one]}
            return replace(traced, totals=tuple(degrees), counted={**traced.counted, **shares})
        # What is computed from a total is the whole batch's already, as a sum of sums.
        behind = reached_from([reader for each in new for reader in readers(each)], readers)
        degrees |= {operation: degree for operation, degree in new.items() if operation.name not in behind}
    return traced


def _is_total(operation: Any, state: State) -> bool:
    """Whether an operation makes a sum over the examples, their number as a float, or a mean of floats."""
    number = operation.outputs[0].dtype.is_floating or operation.outputs[0].dtype.is_complex
    if operation.type == "Cast":
        return number and isinstance(state, Size) and state.degree == 1
    return isinstance(state, Sum) and state.degree in ((0, 1) if number else (1,))
