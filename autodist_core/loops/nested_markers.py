"""Markers of values that become one over the replicas, within conditionals, loops and nested functions.

In: a traced function, and the operations of its updates. Out: nothing, or a `CaptureError`. An optimizer of Keras asks
for the sum of its gradients over the replicas, and may do so in a conditional. In a marked function::

    if tf.math.is_finite(norm):
        optimizer.apply(gradients, variables)    passes: what an update gets are the whole batch's gradients already
        total = context.all_reduce("SUM", x)     is refused: only some replicas might get there

In a function of `run()` the first passes as well if the optimizer gets the tape's gradients: accumulation and scaling,
as in `gradient_accumulation_steps` and `LossScaleOptimizer`, put `apply` into a conditional. What is a sum already
would have to be added up again, and is refused.

Such a marker does nothing. It has a name by which this module finds it, also in a function that was traced before.
"""

from collections.abc import Collection, Iterator
from typing import Any

from autodist_core.capture import reached_from, sources
from autodist_core.capture.tape import graphs_of
from autodist_core.errors import CaptureError
from autodist_core.loops.gradients.summed_again import Origins
from autodist_core.step.op_types import CONDITIONALS

SUM, ROWS = "sum_over_replicas", "rows_of_replicas"
_CALLED = {SUM: "all_reduce", ROWS: "all_gather or whole_batch"}


def require_in_updates(graph: Any, updates: Collection[str], origins: Origins | None = None) -> None:
    """Raise a CaptureError if there is such a marker in an operation that belongs to no update.

    With the `origins` of the values of a function of `run()`, the marker must be of a replica's own gradients.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as graph:
    ...     called = tf.function(lambda: tf.identity(1.0, name="sum_over_replicas"))()
    >>> require_in_updates(graph, {called.op.name})
    >>> require_in_updates(graph, ())
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: all_reduce is called inside a loop, a conditional or a nested tf.function ...
    """
    for operation in graph.get_operations():
        if operation.name not in updates:
            for kind, _ in _nested(operation):
                raise CaptureError(
                    f"{_CALLED[kind]} is called inside a loop, a conditional or a nested tf.function of the function "
                    "that run() gets, or that is marked. Call it at the top level: take the @tf.function of the nested "
                    "function away." + (" The apply of a Keras optimizer calls it, too." if kind == SUM else "")
                )
        elif origins is not None:
            for _, given in _nested(operation):
                sums, own = origins.of(given)
                if sums or not own:
                    raise CaptureError(
                        f"a conditional, a loop or a nested tf.function of an update, {operation.name!r} "
                        f"({operation.type}), adds up over the replicas what is made of "
                        f"{'a sum over the replicas' if sums else 'no gradient'}. The apply of a Keras optimizer adds "
                        "its gradients up, and with gradient_accumulation_steps or LossScaleOptimizer it does so in a "
                        "conditional: give it the tape's gradients, without all_reduce before."
                    )


def given_to_sums(graph: Any, updates: Collection[str]) -> Iterator[Any]:
    """The tensors of which such markers in updates make sums, as the operations with the markers get them.

    >>> import tensorflow as tf
    >>> @tf.function
    ... def summed(x):
    ...     return tf.identity(x, name="sum_over_replicas")
    >>> with tf.Graph().as_default() as graph:
    ...     called = summed(tf.constant(1.0, name="given"))
    >>> [each.op.name for each in given_to_sums(graph, {called.op.name})]
    ['given']
    """
    for operation in graph.get_operations():
        if operation.name in updates:
            for _, given in _nested(operation):
                yield from given


def is_reduced(operation: Any) -> bool:
    """Whether an operation makes a value over all replicas, by itself or in a graph that it runs.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     is_reduced(tf.identity(1.0, name="sum_over_replicas").op), is_reduced(tf.constant(1.0).op)
    (True, False)
    """
    # A function with a gradient of its own has its inputs behind the same operation as its results.
    behind = operation.inputs if operation.type == "IdentityN" else ()
    return any(_kinds(each) for each in (operation, *(tensor.op for tensor in behind))) or any(
        True for _ in _nested(operation)
    )


def _kinds(operation: Any) -> list[str]:
    """The kind of marker that an operation is; nothing for any other operation."""
    name = operation.name.rpartition("/")[2]
    return [kind for kind in _CALLED if operation.type == "Identity" and name.startswith(kind)]


def _nested(operation: Any) -> Iterator[tuple[str, list[Any]]]:
    """The kinds of the markers in the graphs that an operation runs; and of what each is made, among the inputs."""
    given = operation.inputs[1:] if operation.type in CONDITIONALS else operation.inputs
    for graph in graphs_of(operation):
        outside = {placeholder.op.name: value for placeholder, value in zip(graph.inputs, given, strict=False)}
        for inner in graph.get_operations():
            found = [(kind, list(inner.inputs)) for kind in _kinds(inner)]
            for kind, tensors in (*found, *_nested(inner)):
                made_of = reached_from((tensor.op for tensor in tensors), sources)
                yield kind, [outside[each] for each in made_of if each in outside]
