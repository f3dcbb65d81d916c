"""Find the sums and means over the examples that replicas need of the whole batch, to compute with them further.

In: the traced step of a marked function. Out: the same step with these operations in `totals`. Over the replicas, their
values are those of the whole batch, and what is computed from them is one device's::

    sum(losses * mask) / sum(mask)      sum(mask)
    returns - mean(returns)             mean(returns)
    sqrt(mean(errors)), a result        mean(errors)
    minimum(x, float(batch size))       float(batch size)

No gradient goes through these operations. One that a tape differentiates stays the replica's own: its gradient is added
up over the replicas later. A sum or a mean that nothing else is computed from is joined when the step has run.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture import Traced, reached_from, sources
from autodist_core.capture.batch_axis import Known, Nonlinear, Size, State, Sum, follow
from autodist_core.capture.gradients.recording import Recording, handle_of
from autodist_core.capture.gradients.weighing import seeded
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Counted
from autodist_core.capture.traversal import readers
from autodist_core.loops.combining.joining import word
from autodist_core.loops.combining.recomputed import Recomputed

_JOINING = ("Sum", "Mean")


def with_totals(
    traced: Traced, recording: Recording, losses: Sequence[tuple[Any, Any]], known: Mapping[int, Known],
    again: Recomputed,
) -> Traced:
    """The step with such operations in `totals`. `losses` are tensors that are differentiated, each with its seed.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> from autodist_core.loops.combining.recomputed import find_recomputed
    >>> def ratio(x):
    ...     return tf.reduce_sum(x, name="number") / tf.reduce_sum(x * x, name="squares"), tf.reduce_max(x)
    >>> traced, recording = recorded_trace(ratio)
    >>> [each.name for each in with_totals(traced, recording, (), {}, find_recomputed(traced)).totals]
    ['number', 'squares']
    """
    candidates = list(_candidates(traced, recording, again.operations))
    if recording.elsewhere or not candidates:
        return traced
    # The function of a custom gradient may use a number of the whole batch for single examples.
    tape = Tape()
    read = [
        tensor.op for operation in traced.graph.get_operations() if tape.is_custom(operation)
        for tensor in operation.inputs if not tape.made(tensor.op)
    ]
    while True:
        found = follow(traced, known, again.alone)
        inexact = [loss[0].op for loss in losses if isinstance(seeded(*map(found.state_of, loss)), Nonlinear)]
        inexact += [
            output.op for output in traced.outputs for state in [found.state_of(output)]
            if isinstance(state, Nonlinear) or word(output, state) is None
        ]
        needed = reached_from([*read, *inexact, *(each.operation for each in found.mixing)], sources)
        taken = {operation.name for operation in traced.totals}
        new = {
            operation: state for operation in candidates for state in [found.state_of(operation.outputs[0])]
            if operation.name in needed.keys() - taken and _is_total(operation, state)
        }
        if not new:
            return traced
        shares = {
            operation.name: Counted(0, operation.inputs[0].dtype.base_dtype, 1)
            for operation, state in new.items() if state.degree == 0
        }
        traced = replace(traced, totals=(*traced.totals, *new), counted={**traced.counted, **shares})


def _candidates(traced: Traced, recording: Recording, again: Collection[str]) -> Iterator[Any]:
    """The sums and means that no gradient goes through, and that do not run once more for the whole batch."""
    placeholders = {id(value): placeholder for value, placeholder in traced.graph.captures}
    handles = [handle_of(each.variable) for call in recording.found for each in call.gradients]
    by = [placeholders.get(id(handle), handle) for handle in handles]
    by += [tensor for call in recording.of_examples for tensor in call.sources]
    losses = [target for call in recording.found for target in call.targets]
    losses += [target for call in recording.of_examples for target, _ in call.targets]
    begin = {tensor.op.name: tensor.op for tensor in by}

    def blocks(operation: Any) -> bool:
        exact = all(each.dtype.is_integer or each.dtype.is_bool for each in operation.outputs)
        return operation.name not in begin and (exact or operation.type == "StopGradient")

    behind = reached_from(begin.values(), readers, blocks)
    passed = behind.keys() & reached_from((loss.op for loss in losses), sources, blocks).keys()
    tape = Tape()
    for operation in traced.graph.get_operations():
        name, is_size = operation.name, operation.type == "Cast" and operation.inputs[0].dtype.is_integer
        free = is_size or (operation.type in _JOINING and name not in passed)
        if free and name not in traced.updates and name not in again and not tape.made(operation):
            yield operation


def _is_total(operation: Any, state: State) -> bool:
    """Whether an operation makes a sum over the examples, their number as a float, or a mean of floats."""
    number = operation.outputs[0].dtype.is_floating or operation.outputs[0].dtype.is_complex
    if operation.type == "Cast":
        return number and isinstance(state, Size) and state.degree == 1
    return isinstance(state, Sum) and state.degree in ((0, 1) if number else (1,))
