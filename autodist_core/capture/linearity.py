"""Find out whether a tensor is linear in the gradients that a tape made.

In: a tensor of a traced step. Out: whether summing it over the replicas gives what one device computes. For a gradient
`g` that a tape made::

    2 * g + h       linear: h is a gradient, too
    g * g           not linear
    g / norm(g)     not linear

A gradient that is changed linearly on its way to `apply` can be cut behind the change. Otherwise the cut moves before
the change (see `cut`).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.tape import Tape, draws, graphs_of
from autodist_core.capture.traversal import reached_from, sources

# Operations that commute with a sum over replicas when everything they read does.
LINEAR = {"AddN", "Identity", "IdentityN", "ConcatV2", "Reshape", "Cast", "Add", "AddV2", "Sub", "Neg",
          "Squeeze", "ExpandDims", "UnsortedSegmentSum", "Pack"}
# The inputs of these operations that are positions or sizes, and no values.
_POSITIONS = {"ConcatV2": (-1,), "Reshape": (1,), "ExpandDims": (1,), "UnsortedSegmentSum": (1, 2)}
SCALING = {"Mul": (0, 1), "RealDiv": (0,), "DivNoNan": (0,)}


class Linearity:
    """Says which tensors are linear in the gradients that a tape made.

    >>> with tf.Graph().as_default():
    ...     x = tf.constant(2.0, name="x")
    ...     with tf.GradientTape() as tape:
    ...         tape.watch(x)
    ...         y = tf.square(x)
    ...     gradient = tape.gradient(y, x)
    ...     half, root = 0.5 * gradient, tf.sqrt(gradient)
    >>> linearity = Linearity(Tape())
    >>> linearity.is_linear(half), linearity.is_linear(root)
    (True, False)
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def is_source(self, tensor: Any) -> bool:
        """Whether a tensor is a gradient as a tape made it, in this graph or in a graph that this one runs."""
        return self._tape.made(tensor.op) or (self._tape.runs_one(tensor.op) and self.is_linear(tensor))

    def is_linear(self, tensor: Any, given: frozenset[Any] = frozenset()) -> bool:
        """Whether a tensor is computed linearly from gradients that tapes made, and from `given` operations."""
        operation = tensor.op
        if self._tape.made(operation) or operation in given or _is_zero(operation):
            return True
        inputs = list(operation.inputs)
        if operation.type == "Cast" and not _keeps_all(inputs[0].dtype, tensor.dtype):
            return False
        if operation.type == "UnsortedSegmentSum" and not self._as_many_everywhere(tensor):
            return False
        if operation.type in LINEAR:
            skipped = {inputs[position].name for position in _POSITIONS.get(operation.type, ())}
            read = [source for source in inputs if source.name not in skipped]
            return bool(inputs) and all(self.is_linear(source, given) for source in read)
        if operation.type in SCALING:
            if any(_is_zero(inputs[position].op) for position in SCALING[operation.type]):
                return True
            tainted = [n for n, source in enumerate(inputs) if self._tape.reaches(source.op) or source.op in given]
            return (
                len(tainted) == 1
                and tainted[0] in SCALING[operation.type]
                and self.is_linear(inputs[tainted[0]], given)
                and is_same_everywhere(inputs[1 - tainted[0]].op)
            )
        return bool(graphs_of(operation)) and self._is_linear_inside(tensor, given)

    def _as_many_everywhere(self, sums: Any) -> bool:
        """Whether a sum of rows has equally many rows on every replica.

        It does not where each replica has the rows that it looked up, each once.
        """
        count = sums.op.inputs[2].op
        return sums.shape.is_fully_defined() or (
            # A tape gives the gradient of a lookup the shape of the variable.
            count.type == "StridedSlice" and self._tape.made(count.inputs[0].op)
        )

    def _is_linear_inside(self, tensor: Any, given: frozenset[Any]) -> bool:
        """Whether the graphs that an operation runs compute a tensor linearly from the linear arguments."""
        operation, index = tensor.op, tensor.value_index
        handed, graphs = list(operation.inputs), graphs_of(operation)
        # Replicas would take different branches if the condition came from a gradient or from the batch.
        if operation.type.endswith(("If", "Case")) and not is_same_everywhere(handed.pop(0).op):
            return False
        linear = {n for n, source in enumerate(handed) if self.is_linear(source, given)}
        if operation.type.endswith("While"):
            body, condition = graphs
            # The values that a round hands to the next round must be linear, too.
            while lost := {n for n in linear if not self.is_linear(body.outputs[n], _placeholders(body, linear))}:
                linear -= lost
            asked = {n for n in range(len(handed)) if _reads(condition.outputs[0], _placeholders(condition, [n]))}
            return index in linear and not asked & linear and all(is_same_everywhere(handed[n].op) for n in asked)
        return all(self.is_linear(graph.outputs[index], _placeholders(graph, linear)) for graph in graphs)


def is_same_everywhere(operation: Any) -> bool:
    """Whether a value is computed from constants alone, without random numbers: every replica has the same value.

    >>> with tf.Graph().as_default():
    ...     two = tf.constant(1.0) + 1.0
    ...     drawn = tf.random.uniform(()) + two
    >>> is_same_everywhere(two.op), is_same_everywhere(drawn.op)
    (True, False)
    """
    found = reached_from([operation], sources).values()
    return not any(each.type == "Placeholder" or each.op_def.is_stateful or draws(each) for each in found)


def _placeholders(graph: Any, positions: Iterable[int]) -> frozenset[Any]:
    return frozenset(graph.inputs[position].op for position in positions)


def _reads(tensor: Any, given: frozenset[Any]) -> bool:
    """Whether a tensor is computed from one of the given operations."""
    return not given.isdisjoint(reached_from([tensor.op], sources).values())


def _keeps_all(source: tf.DType, target: tf.DType) -> bool:
    """Whether a cast loses nothing. The sum of rounded gradients is not the rounded sum of the gradients."""
    numbers = all(dtype.is_floating or dtype.is_complex for dtype in (source, target))
    return numbers and bool(tf.experimental.numpy.promote_types(source.real_dtype, target.real_dtype) == (
        target.real_dtype.as_numpy_dtype
    ))


def _is_zero(operation: Any) -> bool:
    if operation.type == "Const":
        return not np.any(tf.make_ndarray(operation.get_attr("value")))
    return operation.type == "ZerosLike" or (operation.type == "Fill" and _is_zero(operation.inputs[1].op))
