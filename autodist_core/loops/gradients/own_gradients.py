"""Let what a function of `run()` returns be made of the replica's own gradients, while updates get the sums.

In: the graph of a traced function, its recorded gradients and its results. Out: results that are computed from what is
before the markers of the gradients. For a function that applies a gradient and returns its norm::

    gradient -> marker -> assign             the update gets the sum over the replicas
                   +----> norm -> result     becomes: gradient -> norm (a copy) -> result

A value that the function reduces over the replicas on the way is reduced in the copy, too. What an update itself gives,
such as the flag of a conditional that applies, stays as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture import copied, reached_from, sources
from autodist_core.capture.gradients.recording import Differentiation
from autodist_core.capture.tape import draws


def own_results(
    graph: Any, found: Sequence[Differentiation], results: Sequence[Any], reduced: Sequence[list[Any]],
    completed: Mapping[str, Any],
) -> tuple[list[Any], frozenset[str]]:
    """The results, and the names of new operations that compute those of a marked gradient, from the gradient itself.

    `reduced` are lists of markers of values that become one over the replicas. They get the markers of the copies.
    `completed` has the replica's own value for each operation that completes it for a sum in an update.

    >>> graph = tf.function(lambda x: tf.square(x)).get_concrete_function(tf.TensorSpec((), tf.float32)).graph
    >>> results, new = own_results(graph, (), graph.outputs, (), {})
    >>> results == graph.outputs, new
    (True, frozenset())
    """
    before = {marker.op.name: marker.op.inputs[0] for call in found for marker in call.markers} | dict(completed)
    needed = reached_from((result.op for result in results), sources)
    made: dict[str, Any] = {}

    def own(tensor: Any) -> Any:
        name = tensor.op.name
        if name in before:
            return own(before[name])
        return made[name].outputs[tensor.value_index] if name in made else tensor

    with graph.as_default():
        for operation in list(graph.get_operations()):
            if operation.name not in needed or operation.name in before or not _computes(operation):
                continue
            inputs = [own(tensor) for tensor in operation.inputs]
            if any(one is not other for one, other in zip(inputs, operation.inputs, strict=True)):
                made[operation.name] = copied(operation, inputs, "own")
    for markers in reduced:
        markers += [own(marker) for marker in markers if marker.op.name in made]
    return [own(result) for result in results], frozenset(operation.name for operation in made.values())


def returned(found: Sequence[Differentiation], results: Sequence[Any]) -> list[Differentiation]:
    """The calls that computed a gradient of which a result is made, and no other gradient besides.

    >>> graph = tf.function(lambda x: tf.square(x)).get_concrete_function(tf.TensorSpec((), tf.float32)).graph
    >>> returned((), graph.outputs)
    []
    """
    needed = reached_from((result.op for result in results), sources)
    inner = reached_from((marker.op.inputs[0].op for call in found for marker in call.markers), sources)
    return [
        call for call in found
        if any(marker.op.inputs[0].op.name in needed and marker.op.name not in inner for marker in call.markers)
    ]


def _computes(operation: Any) -> bool:
    """Whether an operation gives the same for the same inputs, and does nothing besides."""
    return not any(tensor.dtype in (tf.resource, tf.variant) for tensor in operation.inputs) and not draws(operation)
