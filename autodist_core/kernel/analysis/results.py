"""Find out how the replicas' values of a step's result become one result for the whole batch.

In: the index of a captured step, and a tensor among its results. Out: a `Joining`::

    tf.constant(3)               SAME       it does not depend on the batch
    reduce_mean(loss)            MEAN       a float is taken for a mean over the examples
    reduce_sum(lengths)          SUM        a tensor is joined as capture has found out, if it has
    reduce_max(lengths)          LARGEST
    reduce_sum(lengths) // 2     UNKNOWN    an integer that no combination of the replicas' values gives
"""

from enum import Enum

from autodist_core.kernel.analysis.gradient_flow import first_written
from autodist_core.step import naming
from autodist_core.step.index import StepIndex, analysis, output_type


class Joining(Enum):
    """How the replicas' values of one result are joined.

    >>> from autodist_core.capture.example import example_step
    >>> joining(StepIndex(example_step()), "loss")
    <Joining.MEAN: 'the mean over the examples'>
    """

    ROWS = "the rows, one behind the other"
    EACH = "a value of every replica"
    SAME = "one replica's, since all have the same"
    SUM = "the sum"
    MEAN = "the mean over the examples"
    LARGEST = "the largest"
    SMALLEST = "the smallest"
    UNKNOWN = "not known"


_JOINED = {
    "same": Joining.SAME, "sum": Joining.SUM, "mean": Joining.MEAN, "max": Joining.LARGEST, "min": Joining.SMALLEST,
    "rows": Joining.ROWS, "each": Joining.EACH,
}


def joining(step: StepIndex, name: str) -> Joining:
    """Return how the replicas' values of a tensor become the value for the whole batch.

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
    >>> [joining(step, tensor.op.inputs[0].name).name for tensor in graph.outputs]
    ['SUM', 'UNKNOWN', 'SAME']
    """
    known = _known(step).get(naming.canonical(name))
    if known is not None:
        return known
    if not differs(step, name):
        return Joining.SAME
    if step.item.concat_outputs:
        return Joining.ROWS
    dtype = output_type(step, name)
    if dtype.is_floating or dtype.is_complex:
        return Joining.MEAN
    return Joining.UNKNOWN


def axis_of_rows(step: StepIndex, name: str) -> int:
    """Return the axis along which a tensor of rows has the examples.

    >>> from autodist_core.capture.example import example_step
    >>> axis_of_rows(StepIndex(example_step()), "loss")
    0
    """
    return next((each.axis for each in step.item.joined if each.tensor == naming.canonical(name)), 0)


@analysis
def _known(step: StepIndex) -> dict[str, Joining]:
    return {each.tensor: _JOINED[each.how] for each in step.item.joined}


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
