"""Find out how the replicas' values of a step's result become one result for the whole batch.

In: the index of a captured step, and a tensor among its results. Out: a word of `Joined.how`, or nothing::

    tf.constant(3)               same     it does not depend on the batch
    reduce_mean(loss)            mean     a float is taken for a mean over the examples
    reduce_sum(lengths)          sum      a tensor is joined as capture has found out, if it has
    reduce_max(lengths)          max
    reduce_sum(lengths) // 2              an integer that no combination of the replicas' values gives
"""

from autodist_core.kernel.analysis.gradient_flow import first_written
from autodist_core.step import naming
from autodist_core.step.graph_item import Joined
from autodist_core.step.index import StepIndex, analysis, output_type


def joining(step: StepIndex, name: str) -> str:
    """Return how the replicas' values of a tensor become the value for the whole batch; empty if that is not known.

    >>> import tensorflow as tf
    >>> from autodist_core import GraphItem
    >>> from autodist_core.step.graph_item import Joined, Tensor
    >>> @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "x")])
    ... def results(x):
    ...     return tf.reduce_sum(x, name="sum"), tf.reduce_sum(x) // 2, tf.constant(3)
    >>> graph = results.get_concrete_function().graph
    >>> x = (Tensor("x", "int32", (None,)),)
    >>> graph_bytes = graph.as_graph_def().SerializeToString()
    >>> step = StepIndex(GraphItem((), inputs=x, joined=(Joined("sum", "sum"),), graph_bytes=graph_bytes))
    >>> [joining(step, tensor.op.inputs[0].name) for tensor in graph.outputs]
    ['sum', '', 'same']
    """
    if naming.canonical(name) in _known(step):
        return _known(step)[naming.canonical(name)].how
    if not differs(step, name):
        return "same"
    if step.item.concat_outputs:
        return "rows"
    dtype = output_type(step, name)
    return "mean" if dtype.is_floating or dtype.is_complex else ""


def axis_of_rows(step: StepIndex, name: str) -> int:
    """Return the axis along which a tensor of rows has the examples.

    >>> from autodist_core.capture.example import example_step
    >>> axis_of_rows(StepIndex(example_step()), "loss")
    0
    """
    known = _known(step).get(naming.canonical(name))
    return known.axis if known else 0


@analysis
def _known(step: StepIndex) -> dict[str, Joined]:
    return {each.tensor: each for each in step.item.joined}


def differs(step: StepIndex, name: str) -> bool:
    """Whether a tensor is computed from the batch, or from a variable that compute has written before.

    >>> from autodist_core.capture.example import example_step
    >>> differs(StepIndex(example_step()), "loss")
    True
    """
    cone = step.cone([naming.node_of(name)])
    inputs = {naming.node_of(tensor.name) for tensor in step.item.inputs} | {step.item.examples, step.item.replica}
    written = first_written(step)
    return any(
        node in inputs or any(step.position[node] > written.get(t.variable, step.end) for t in touched)
        for node in cone for touched in [step.touches.get(node, ())]
    )
