"""Refuse a step that stores a gradient in a variable, and changes the stored value nonlinearly before `apply`.

In: a traced step. Out: a `CaptureError` for each variable whose gradient is made so. For a gradient `g`::

    stored.assign_add(g); apply(2 * stored)             passes: the replicas' sums add up
    stored.assign_add(g); apply(stored / norm(stored))  is refused

Each replica would divide by the norm of its own sum.
"""

from collections.abc import Collection, Iterator
from typing import Any

from autodist_core.capture.linearity import LINEAR, SCALING
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Marked, Traced
from autodist_core.capture.traversal import sources
from autodist_core.errors import CaptureError


def changed_in_variables(traced: Traced, tape: Tape, updates: Collection[str]) -> Iterator[CaptureError]:
    """Yield an error for each gradient that was stored in a variable in this step, and then changed nonlinearly.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.example import example_traced
    >>> stored = tf.Variable(tf.zeros([3, 1]))
    >>> def clipped(gradient):
    ...     return tf.clip_by_norm(stored.assign_add(gradient), 1.0)
    >>> traced = example_traced(changed=clipped)
    >>> for error in changed_in_variables(traced, Tape(), traced.updates):
    ...     print(str(error).partition(" (")[0])
    the gradient of 'kernel' is computed from gradients that this step stored in a variable
    """
    created = {operation.name: index for index, operation in enumerate(traced.graph.get_operations())}

    def left_in(read: Any) -> bool:
        """Whether the step writes a value made of gradients to a variable before this read of the variable."""
        return any(
            writer.type.startswith("Assign") and writer.name not in updates and tape.reaches(writer.inputs[1].op)
            and created[writer.name] < created[read.name] for writer in read.inputs[0].consumers()
        )

    for gradient in traced.gradients:
        # Values made of a gradient behind its cut are the whole batch's, also those that a variable stores.
        if not tape.reaches(gradient.values.op):
            for read in _changed_reads(gradient, tape):
                if left_in(read):
                    yield CaptureError(
                        f"the gradient of {gradient.variable!r} is computed from gradients that this step stored in a "
                        f"variable (read at {read.name!r}), and not linearly: each replica would store and use its "
                        "own. Let the optimizer keep such state (momentum, gradient_accumulation_steps) and clip."
                    )
                    break


def _changed_reads(gradient: Marked, tape: Tape) -> Iterator[Any]:
    """Yield the reads of variables behind which operations that are not linear make a gradient."""
    waiting, seen = [(gradient.values.op.inputs[0].op, False)], set()
    while waiting:
        operation, transformed = waiting.pop()
        if (operation.name, transformed) in seen or tape.made(operation):
            continue
        seen.add((operation.name, transformed))
        if operation.type != "ReadVariableOp":
            linear = operation.type in LINEAR or operation.type in SCALING
            waiting.extend((source, transformed or not linear) for source in sources(operation))
        elif transformed:
            yield operation
