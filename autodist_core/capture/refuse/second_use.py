"""Refuse a step whose loss uses the gradient of a variable, if the loss is not linear in that gradient.

In: a traced step. Out: a `CaptureError` for each operation that makes such a loss. For a gradient `g` of a variable::

    loss = sum(g)           passes: the replicas' losses add up to the loss of the summed gradient
    loss = sum(g * g)       is refused

On one device `g` is the whole batch's gradient. A replica that computes the second loss has only its own gradient.
Norms of gradients, and weights after a step of an inner loop, are not linear in it. If the function adds the gradient
up over the replicas (`all_reduce`), each replica has the whole batch's.

A step that stores a gradient in a variable, and changes the stored value nonlinearly before `apply`, is refused, too::

    stored.assign_add(g); apply(2 * stored)             passes: the replicas' sums add up
    stored.assign_add(g); apply(stored / norm(stored))  is refused: each would divide by the norm of its own sum
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from autodist_core.capture.linearity import LINEAR, SCALING
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Marked, Traced
from autodist_core.capture.traversal import sources
from autodist_core.errors import CaptureError
from autodist_core.step.op_types import WITHOUT_VALUES
from autodist_core.step.reaching import reached

_LINEAR = {"AddN", "Identity", "IdentityN", "ConcatV2", "Reshape", "Add", "AddV2", "Neg", "Squeeze", "ExpandDims",
           "Pack", "Sum", "Mean", "Transpose"}
_PRODUCTS = {"Mul", "MatMul", "BatchMatMulV2", "RealDiv"}


def second_uses(traced: Traced, tape: Tape, updates: Iterable[str]) -> Iterator[CaptureError]:
    """Yield an error for the first such operation behind each gradient; `updates` names the nodes of the update.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.example import example_traced
    >>> def penalized(x, kernel):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean((x @ kernel) ** 2)
    ...     return loss + tf.reduce_sum(tf.square(tape.gradient(loss, kernel), name="penalty"))
    >>> traced = example_traced(loss_of=penalized)
    >>> for error in second_uses(traced, Tape(), traced.updates):
    ...     print(str(error).partition(",")[0])
    'penalty' (Square) makes part of a loss of the gradient of a variable
    """
    operations = traced.graph.get_operations()
    created = {operation.name: position for position, operation in enumerate(operations)}
    # The sum over the replicas of a gradient that is linear until there is the whole batch's.
    ours = {*updates, *(each.name for each in traced.markers), *(marker.op.name for marker in traced.exchanged.sums)}
    shapes = {tuple(g.values.shape) for g in traced.gradients if g.values.shape.is_fully_defined()}
    # The operations that one call of a tape makes stand one behind the other in the graph.
    calls: dict[str, int] = {}
    for operation in operations:
        if tape.made(operation):
            before = operations[created[operation.name] - 1]
            calls[operation.name] = calls.get(before.name, created[operation.name])
    found: dict[str, Any] = {}
    for operation in operations:
        for tensor in operation.outputs if operation.name in calls and operation.type != "Const" else ():
            # A jacobian computes with integers of its own.
            if not tensor.dtype.is_integer and tensor.shape.is_fully_defined() and tuple(tensor.shape) in shapes:
                culprit = _culprit(tensor, calls, ours, created)
                if culprit is not None:
                    found.setdefault(culprit.name, culprit)
    for culprit in found.values():
        yield CaptureError(
            f"{culprit.name!r} ({culprit.type}) makes part of a loss of the gradient of a variable, and that loss is "
            "differentiated again: each replica would take its own gradient there, not the whole batch's. "
            "Leave that term out. Or, in a marked function, take the whole batch's gradient: "
            "tf.distribute.get_replica_context().all_reduce('MEAN', gradient) is that of a mean loss, and 'SUM' that "
            "of a sum."
        )


def _culprit(gradient: Any, calls: dict[str, int], ours: set[str], created: dict[str, int]) -> Any:
    """Follow one gradient; return the first operation that is not linear in it if a later call of a tape reads it."""
    reached, waiting = {gradient.name}, [gradient]
    culprit, again = None, False
    while waiting:
        tensor = waiting.pop()
        for reader in tensor.consumers():
            if reader.name in calls:
                again |= calls[reader.name] != calls[gradient.op.name]
                continue
            if reader.name in ours or reader.type in WITHOUT_VALUES:
                continue
            tainted = sum(source.name in reached for source in reader.inputs)
            if reader.type not in _LINEAR and not (reader.type in _PRODUCTS and tainted == 1):
                culprit = culprit or reader
            following = list(reader.outputs)
            if reader.type == "IdentityN":
                # A custom gradient hands its inputs and its outputs on by one operation.
                pairs = zip(reader.inputs, reader.outputs, strict=True)
                following = [output for source, output in pairs if source.name in reached]
            if reader.type.startswith("Assign"):
                following = [
                    output for other in reader.inputs[0].consumers() for output in other.outputs
                    if other.type == "ReadVariableOp" and created[other.name] > created[reader.name]
                ]
            waiting.extend(output for output in following if output.name not in reached)
            reached.update(output.name for output in following)
    return culprit if again else None


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
    def before(place: tuple[Any, bool]) -> list[tuple[Any, bool]]:
        operation, transformed = place
        if operation.type == "ReadVariableOp" or tape.made(operation):
            return []
        transformed |= operation.type not in LINEAR and operation.type not in SCALING
        return [(source, transformed) for source in sources(operation)]

    for operation, transformed in reached([(gradient.values.op.inputs[0].op, False)], before):
        if transformed and operation.type == "ReadVariableOp" and not tape.made(operation):
            yield operation
