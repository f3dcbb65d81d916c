"""Find out how the replicas' values of a step's result become one result for the whole batch.

In: the index of a captured step, and a tensor among its results. Out: a `Joining`::

    tf.constant(3)               SAME       it does not depend on the batch
    reduce_mean(loss)            MEAN       a float is taken for a mean over the examples
    reduce_sum(lengths)          SUM        an integer is joined as the operation that made it joins examples
    reduce_max(lengths)          LARGEST
    reduce_max(lengths) + 1      UNKNOWN    an integer for which no rule is known
"""

from __future__ import annotations

from enum import Enum

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.kernel.analysis.gradient_flow import first_written
from autodist_core.step import naming
from autodist_core.step.index import StepIndex, output_type


class Joining(Enum):
    """How the replicas' values of one result are joined."""

    SAME = "one replica's, since all have the same"
    SUM = "the sum"
    MEAN = "the mean over the examples"
    LARGEST = "the largest"
    SMALLEST = "the smallest"
    UNKNOWN = "not known"


_PASSING = {"Cast", "ExpandDims", "Identity", "Reshape", "Snapshot", "Squeeze", "StopGradient"}
_LINEAR = {"AddN", "AddV2", "Neg", "Sub"}
_MADE_BY = {
    "Sum": Joining.SUM, "Size": Joining.SUM, "Max": Joining.LARGEST, "Min": Joining.SMALLEST,
    # Truth values are joined as the numbers 0 and 1.
    "Any": Joining.LARGEST, "All": Joining.SMALLEST,
}  # fmt: skip


def joining(step: StepIndex, name: str) -> Joining:
    """Return how the replicas' values of a tensor become the value for the whole batch.

    >>> from autodist_core import GraphItem
    >>> from autodist_core.step.graph_item import Tensor
    >>> @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "x")])
    ... def results(x):
    ...     return tf.reduce_sum(x), tf.reduce_max(x) + 0, tf.shape(x)[0], tf.constant(3), tf.reduce_mean(x)
    >>> graph = results.get_concrete_function().graph
    >>> x = (Tensor("x", "int32", (None,)),)
    >>> step = StepIndex(GraphItem((), inputs=x, graph_bytes=graph.as_graph_def().SerializeToString()))
    >>> [joining(step, tensor.op.inputs[0].name).name for tensor in graph.outputs]
    ['SUM', 'UNKNOWN', 'SUM', 'SAME', 'UNKNOWN']
    """
    if not differs(step, name):
        return Joining.SAME
    dtype = output_type(step, name)
    if dtype.is_floating or dtype.is_complex:
        return Joining.MEAN
    if not dtype.is_integer and dtype != tf.bool:
        return Joining.UNKNOWN
    return _of_operation(step, name)


def _of_operation(step: StepIndex, name: str) -> Joining:
    node = step.nodes[naming.node_of(name)]
    inputs = list(naming.data_inputs(node))
    if node.op in _PASSING:
        return _of_operation(step, inputs[0])
    if node.op in _LINEAR:
        # A term that is equal on all replicas would be added once for each replica.
        found = {_of_operation(step, source) if differs(step, source) else Joining.SAME for source in inputs}
        return Joining.SUM if found == {Joining.SUM} else Joining.UNKNOWN
    if node.op == "StridedSlice" and step.nodes[naming.node_of(inputs[0])].op == "Shape":
        # The first axis has the examples. The other axes have one length on all replicas.
        return {0: Joining.SUM, None: Joining.UNKNOWN}.get(_constant(step, inputs[1]), Joining.SAME)
    return _MADE_BY.get(node.op, Joining.UNKNOWN)


def _constant(step: StepIndex, name: str) -> int | None:
    node: node_def_pb2.NodeDef = step.nodes[naming.node_of(name)]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value.flat[0]) if value.size == 1 else None


def differs(step: StepIndex, name: str) -> bool:
    """Whether a tensor is computed from the batch, or from a variable that compute has written before."""
    cone = step.cone([naming.node_of(name)])
    inputs = {naming.node_of(tensor.name) for tensor in step.item.inputs} | {step.item.examples}
    written = first_written(step)
    return any(
        node in inputs or any(step.position[node] > written.get(t.variable, step.end) for t in touched)
        for node in cone for touched in [step.touches.get(node, ())]
    )
