"""Refuse a step that adds a weighted gradient and an unweighted one.

In: a traced step. Out: a `CaptureError` for each such sum. A loss that went through `optimizer.scale_loss` is weighted:
it counts the replica's share of the batch. A loss that did not is a mean over the replica's own examples::

    AddN(weighted gradient, weighted gradient)      passes
    AddN(weighted gradient, unweighted gradient)    is refused

The sum over the replicas is right for weighted gradients, the weighted mean for the others. No rule is right for both.

Where a front weights the seed of every tape itself (`Traced.added_up`), nothing is refused: what does not depend on a
seed is a zero, such as the gradient of a sign, and counts in either way.
"""

from collections.abc import Iterable, Iterator

from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Traced
from autodist_core.errors import CaptureError

_SUMS = {"AddN", "Add", "AddV2", "Sub", "ConcatV2"}


def mixed_weights(traced: Traced, tape: Tape, updates: Iterable[str]) -> Iterator[CaptureError]:
    """Yield an error for each sum of weighted and unweighted gradients; `updates` names the update's nodes.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as graph:
    ...     kernel = tf.constant(2.0)
    ...     with tf.GradientTape(persistent=True) as tape:
    ...         tape.watch(kernel)
    ...         scaled, other = tf.square(kernel), tf.abs(kernel)
    ...     weighted = tape.gradient(scaled, kernel)
    ...     total = tf.add(weighted, tape.gradient(other, kernel), name="total")
    >>> traced = Traced(graph, [], [], [total], None, None, weighting=[weighted])
    >>> for error in mixed_weights(traced, Tape(), ()):
    ...     print(str(error).partition(":")[0])
    gradients of two kinds are added up at 'total'
    """
    ours = set(updates)
    for operation in traced.graph.get_operations() if traced.weighting else ():
        # A tape adds gradients up by AddN only. Other sums that a tape made may repeat sums of the model.
        sums = {"AddN"} if tape.made(operation) else _SUMS
        if operation.name not in traced.weighted or operation.name in ours or operation.type not in sums:
            continue
        counted = {
            source.op.name in traced.weighted for source in operation.inputs
            if source.dtype == operation.outputs[0].dtype and source.op.type != "Const" and tape.reaches(source.op)
        }
        if len(counted) > 1:
            yield CaptureError(
                f"gradients of two kinds are added up at {operation.name!r}: of a loss that went through "
                "optimizer.scale_loss, and of one that did not. Let the sum of all terms go there, or none."
            )
