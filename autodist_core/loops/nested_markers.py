"""Markers of values that become one over the replicas, within conditionals, loops and nested functions.

In: a traced function, and the operations of its updates. Out: nothing, or a `CaptureError`. An optimizer of Keras asks
for the sum of its gradients over the replicas, and may do so in a conditional. In a marked function::

    if tf.math.is_finite(norm):
        optimizer.apply(gradients, variables)    passes: what an update gets are the whole batch's gradients already
        total = context.all_reduce("SUM", x)     is refused: only some replicas might get there

In a function of `run()` both are refused.

Such a marker does nothing. It has a name by which this module finds it, also in a function that was traced before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from autodist_core.capture.tape import graphs_of
from autodist_core.errors import CaptureError

SUM, ROWS = "sum_over_replicas", "rows_of_replicas"
_CALLED = {SUM: "all_reduce", ROWS: "all_gather or whole_batch"}


def require_in_updates(graph: Any, updates: Collection[str]) -> None:
    """Raise a CaptureError if there is such a marker in an operation that belongs to no update.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as graph:
    ...     called = tf.function(lambda: tf.identity(1.0, name="sum_over_replicas"))()
    >>> require_in_updates(graph, {called.op.name})
    >>> require_in_updates(graph, ())
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: all_reduce is called inside a loop, a conditional or a nested tf.function ...
    """
    for operation in graph.get_operations():
        kind = next(_nested(operation), None) if operation.name not in updates else None
        if kind is not None:
            raise CaptureError(
                f"{_CALLED[kind]} is called inside a loop, a conditional or a nested tf.function of the function that "
                "run() gets, or that is marked. Call it at the top level: take the @tf.function of the nested function "
                "away." + (" The apply of a Keras optimizer calls it, too." if kind == SUM else "")
            )


def _nested(operation: Any) -> Iterator[str]:
    """The kinds of the markers in the graphs that an operation runs."""
    for graph in graphs_of(operation):
        for inner in graph.get_operations():
            name = inner.name.rpartition("/")[2]
            yield from (kind for kind in _CALLED if inner.type == "Identity" and name.startswith(kind))
            yield from _nested(inner)
