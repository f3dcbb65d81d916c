"""Find the operations that pad ragged tensors, or make masks of lengths, up to the longest of a replica's examples.

In: a traced step. Out: the same step with these operations in `longest`. `rewrite/markers.py` changes them::

    RaggedTensorToTensor(words)           pads to the text with the most words
    Range(0, Max(lengths))                counts to the largest length, as `tf.sequence_mask` does
    DenseBincount(classes, Max(classes) + 1)   has a bin for each number up to the largest one

One device pads to the longest example of the batch, and a mean or a convolution over the padded axis depends on that.
Bins and segments are added up over the replicas, so that all replicas need as many.
"""

from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis import Rows, follow
from autodist_core.capture.batch_axis.rules import ragged
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import reached_from, readers

_PASSING_ON = {"Add", "AddV2", "Cast", "Identity", "Maximum", "Minimum", "Mul", "Sub"}
"""Operations behind which an integer is still a limit."""
_LIMITS = {"DenseBincount": 1, "OneHot": 1, "Range": 1, "UnsortedSegmentSum": 2}
"""Operations whose result ends at a limit, and the limit's position among their inputs."""


def with_longest(traced: Traced) -> Traced:
    """Return the step with the operations in `longest` that pad or count to the longest of a replica's examples.

    >>> import tensorflow as tf
    >>> lengths = tf.TensorSpec([None], tf.int64)
    >>> step = tf.function(tf.sequence_mask).get_concrete_function(lengths)
    >>> traced = Traced(step.graph, (), step.inputs, step.outputs, None, None)
    >>> [operation.type for operation in with_longest(traced).longest]
    ['Max']
    """
    tape = Tape()
    candidates = [
        operation for operation in traced.graph.get_operations()
        if operation.name not in traced.updates and (ragged.pads(operation) or _counts(operation))
        and not tape.made(operation)
    ]
    if not candidates:
        return traced
    found = follow(traced, {})
    return replace(traced, longest=tuple(
        each for each in candidates
        # The lengths of examples, or where the entries of each example begin.
        if ragged.has_parts([state := found.state_of(each.inputs[0 if each.type == "Max" else -1])])
        or (isinstance(state, Rows) and not state.stride and not state.degree)
    ))


def _counts(operation: Any) -> bool:
    """Whether an operation takes the largest of integers, and a result ends there, as a mask of lengths does."""
    if operation.type != "Max" or not operation.outputs[0].dtype.is_integer or operation.outputs[0].shape.rank != 0:
        return False
    if operation.inputs[0].shape.num_elements() is not None:
        # There is one length for each example, and the number of examples is not known.
        return False
    passing_on = reached_from([operation], lambda made: (each for each in readers(made) if each.type in _PASSING_ON))
    limits = [tensor for each in passing_on.values() for tensor in each.outputs]
    return any(
        reader.type in _LIMITS and reader.inputs[_LIMITS[reader.type]] is tensor
        for tensor in limits for reader in tensor.consumers()
    )
