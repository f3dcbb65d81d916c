"""Find the operations that the kernels run once more for the whole batch, and what these operations are given.

In: a traced step. Out: a `Recomputed`. For a function that adds the batch's sum to `total` and returns `x - total`::

    ReadVariableOp, Sub    run once more, when `total` has the whole batch's sum
    x                      is given: the replicas' rows, one behind the other

These are the operations of results that read a variable after its last write outside the updates, or that compute with
gradients, or with the values of such operations. `kernel.passes.outputs` runs them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autodist_core.capture import Traced, reached_from, sources, touches_of
from autodist_core.step.index import Touch


@dataclass(frozen=True)
class Recomputed:
    """The operations that run once more, by name. `find_recomputed` finds them, and has an example."""

    operations: Mapping[str, Any]
    given: tuple[Any, ...]
    """The tensors that these operations read. The replicas' values of each become one."""
    alone: frozenset[str]
    """The operations whose values nothing else needs on the replicas: no gradient, and nothing that is written."""


def find_recomputed(traced: Traced) -> Recomputed:
    """Find the operations of a step that run once more for the whole batch.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> total = tf.Variable(0.0)
    >>> def step(x):
    ...     total.assign_add(tf.reduce_sum(x))
    ...     return x - total
    >>> found = find_recomputed(recorded_trace(step, total=total)[0])
    >>> sorted(operation.type for operation in found.operations.values()), [tensor.name for tensor in found.given]
    (['Identity', 'ReadVariableOp', 'Sub'], ['x:0'])
    """
    operations, touches = traced.graph.get_operations(), touches_of(traced.graph.get_operations(), traced.handles)
    seeds = {variable.name for variable in traced.captured.values() if variable.kind == "seed"}
    last_write = {
        touch.variable: at for at, operation in enumerate(operations) if operation.name not in traced.updates
        for touch in touches.get(operation.name, ()) if touch.writes and touch.variable not in seeds
    }
    in_results = reached_from((output.op for output in traced.outputs), sources)
    of_gradients = _of_gradients(traced, operations, touches)
    found: dict[str, Any] = {}
    for at, operation in enumerate(operations):
        name, touched = operation.name, touches.get(operation.name, ())
        if name not in in_results or name in traced.updates or any(touch.writes for touch in touched):
            continue
        combined = any(at > last_write.get(touch.variable, len(operations)) for touch in touched)
        if combined or name in of_gradients or any(source.name in found for source in sources(operation)):
            found[name] = operation
    ready = {*found, *traced.updates, *(marker.name for marker in traced.markers)}
    given = {
        id(tensor): tensor for operation in found.values() for tensor in operation.inputs
        if tensor.op.name not in ready and tensor.dtype != "resource"
    }
    effects = (each for each in traced.graph.control_outputs if each.type not in ("ReadVariableOp", "Placeholder"))
    needed = reached_from([*traced.markers, *effects], sources) if found else {}
    return Recomputed(found, tuple(given.values()), frozenset(found.keys() - needed.keys()))


def _of_gradients(
    traced: Traced, operations: Sequence[Any], touches: Mapping[str, tuple[Touch, ...]]
) -> frozenset[str]:
    """The operations behind gradients, outside the updates, that no gradient needs."""
    markers = {marker.name: marker for marker in traced.markers}
    behind: set[str] = set()
    written: set[str] = set()
    for operation in operations if markers else ():
        if operation.name in markers:
            continue
        touched = () if operation.name in traced.updates else touches.get(operation.name, ())
        reads = any(not touch.writes and touch.variable in written for touch in touched)
        if reads or any(each.name in behind or each.name in markers for each in sources(operation)):
            behind.add(operation.name)
            written.update(touch.variable for touch in touched if touch.writes)
    return frozenset(behind - reached_from(markers.values(), sources).keys())
