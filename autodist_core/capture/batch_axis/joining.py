"""Find out how the replicas' integers and truth values become those of the whole batch.

In: a traced step, and the states of tensors. Out: a `Joined` for each tensor for which it is known::

    reduce_sum(lengths)                    sum     a sum over the examples
    reduce_max(lengths) + 1                max     the largest value over the examples
    tf.shape(x)[1]                         same    equal on all replicas
    reduce_sum(reduce_max(lengths, 0))     -       no combination of the replicas' values gives it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autodist_core.capture.batch_axis.states.state import ALIKE, LARGEST, SMALLEST, SUM, State
from autodist_core.capture.traced import Traced, name_of
from autodist_core.capture.traversal import reached_from, sources
from autodist_core.step.graph_item import Joined

_HOW = {ALIKE: "same", SUM: "sum", LARGEST: "max", SMALLEST: "min"}


def to_be_joined(traced: Traced) -> list[Any]:
    """Return the integers and truth values whose values on the replicas are joined.

    These are results of the step, and values from which a result is computed together with the state of metrics.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda lengths: (tf.reduce_max(lengths), tf.sqrt(2.0)), autograph=False)
    >>> graph = step.get_concrete_function(tf.TensorSpec((None,), tf.int32)).graph
    >>> traced = Traced(graph, (), graph.inputs, graph.outputs, examples=None, total=None)
    >>> [tensor.dtype.name for tensor in to_be_joined(traced)]
    ['int32']
    """
    if traced.concat_outputs:
        return []
    needed = {id(tensor): tensor for tensor in traced.outputs}
    behind = reached_from((tensor.op for tensor in traced.outputs), sources)
    metrics = {id(source.handle) for source in traced.sources if source.variable.kind == "metric"}
    handles = {id(placeholder) for value, placeholder in traced.graph.captures if id(value) in metrics}
    combined: set[str] = set()
    for operation in traced.graph.get_operations() if handles else ():
        inputs = operation.inputs if operation.name in behind else ()
        if any(id(tensor) in handles or tensor.op.name in combined for tensor in inputs):
            combined.add(operation.name)
            needed.update({id(tensor): tensor for tensor in inputs})
    return [
        tensor for tensor in needed.values()
        if (tensor.dtype.is_integer or tensor.dtype.is_bool) and tensor.op.name not in combined
    ]


def joined(tensors: Sequence[Any], states: Sequence[State]) -> tuple[Joined, ...]:
    """Return how the replicas' values of tensors are joined, for those tensors for which it is known.

    The module's docstring has examples.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis.states.state import SAME, State
    >>> with tf.Graph().as_default():
    ...     lengths = tf.constant([3, 5])
    ...     results = [tf.reduce_max(lengths, name="longest"), tf.rank(lengths, name="axes")]
    >>> [(each.tensor, each.how) for each in joined(results, [State(LARGEST), SAME])]
    [('longest', 'max'), ('axes', 'same')]
    """
    return tuple(
        Joined(name_of(tensor), _HOW[state.kind])
        for tensor, state in zip(tensors, states, strict=True)
        if state.kind in _HOW and (state.kind != SUM or (state.degree == 1 and tensor.dtype.is_integer))
    )
