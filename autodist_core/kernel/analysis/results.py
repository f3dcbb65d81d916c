"""How one result of the whole batch is made of the replicas' own: the one rule for what a step returns.

In: a captured step. Out: for a tensor among its results, a `Joining`. A tensor that is the same on every replica is
itself. An integer or a truth value is joined as the operation that made it would join the parts of a batch. A float is
a mean over the examples, whatever made it. `UNKNOWN` is an integer or a truth value of which that cannot be said.
"""

from __future__ import annotations

from enum import Enum

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.kernel.analysis.gradient_flow import first_written
from autodist_core.step import naming
from autodist_core.step.index import StepIndex, output_type


class Joining(Enum):
    """What is made of the replicas' values of one result."""

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
    # A truth value is 0 or 1.
    "Any": Joining.LARGEST, "All": Joining.SMALLEST,
}  # fmt: skip


def joining(step: StepIndex, name: str) -> Joining:
    """How the replicas' values of a tensor become the whole batch's.

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
        # What is the same on every replica would be added as often as there are replicas.
        found = {_of_operation(step, source) if differs(step, source) else Joining.SAME for source in inputs}
        return Joining.SUM if found == {Joining.SUM} else Joining.UNKNOWN
    if node.op == "StridedSlice" and step.nodes[naming.node_of(inputs[0])].op == "Shape":
        # The first axis counts examples; the others are as long on every replica.
        return {0: Joining.SUM, None: Joining.UNKNOWN}.get(_constant(step, inputs[1]), Joining.SAME)
    return _MADE_BY.get(node.op, Joining.UNKNOWN)


def _constant(step: StepIndex, name: str) -> int | None:
    node: node_def_pb2.NodeDef = step.nodes[naming.node_of(name)]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value.flat[0]) if value.size == 1 else None


def differs(step: StepIndex, name: str) -> bool:
    """Whether a tensor is computed from the batch, or from state as this step has left it so far."""
    cone = step.cone([naming.node_of(name)])
    inputs = {naming.node_of(tensor.name) for tensor in step.item.inputs} | {step.item.examples}
    written = first_written(step)
    return any(
        node in inputs or any(step.position[node] > written.get(t.variable, step.end) for t in touched)
        for node in cone for touched in [step.touches.get(node, ())]
    )
