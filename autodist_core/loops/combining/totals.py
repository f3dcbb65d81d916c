"""Find the sums and means over the examples that a marked function needs of the whole batch.

In: the traced step of a marked function. Out: the same step with these operations in `totals` (see `capture.totals`).
No gradient goes through them. One that a tape differentiates stays the replica's own: its gradient is added up over the
replicas later.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from autodist_core.capture import Traced, reached_from, sources, totals
from autodist_core.capture.batch_axis import Found, Known, Nonlinear, follow
from autodist_core.capture.gradients.recording import Recording, handle_of
from autodist_core.capture.gradients.weighing import seeded
from autodist_core.capture.tape import Tape
from autodist_core.capture.traversal import readers
from autodist_core.loops.combining.joining import word
from autodist_core.loops.combining.recomputed import Recomputed


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
    # The function of a custom gradient may use a number of the whole batch for single examples.
    tape = Tape()
    read = [
        tensor.op for operation in traced.graph.get_operations() if tape.is_custom(operation)
        for tensor in operation.inputs if not tape.made(tensor.op)
    ]

    def inexact(found: Found) -> list[Any]:
        of_losses = [loss[0].op for loss in losses if isinstance(seeded(*map(found.state_of, loss)), Nonlinear)]
        of_results = [
            output.op for output in traced.outputs for state in [found.state_of(output)]
            if isinstance(state, Nonlinear) or word(output, state) is None
        ]
        return [*of_losses, *of_results, *(each.operation for each in found.mixing)]

    candidates = [] if recording.elsewhere else list(_candidates(traced, recording, again.operations))
    return totals.with_totals(traced, candidates, lambda now: follow(now, known, again.alone), inexact, read)


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
        free = is_size or (operation.type in totals.JOINING and name not in passed)
        if free and name not in traced.updates and name not in again and not tape.made(operation):
            yield operation
