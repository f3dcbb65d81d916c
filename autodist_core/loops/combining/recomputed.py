"""Find the operations that the kernels run once more for the whole batch, and what these operations are given.

In: a traced step. Out: a `Recomputed`. For a function that adds the batch's sum to `total` and returns `x - total`::

    ReadVariableOp, Sub    run once more, when `total` has the whole batch's sum
    x                      is given: the replicas' rows, one behind the other

These are the operations of results that read a variable after its last write outside the updates, or that compute with
gradients, or with the values of such operations. `kernel.passes.outputs` runs them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autodist_core.capture import Traced, reached_from, sources, touches_of
from autodist_core.step.index import Touch


@dataclass(frozen=True)
class Recomputed:
    """The operations that run once more, by name.

    >>> import tensorflow as tf
    >>> from autodist_core.loops.example import traced_loop
    >>> total = tf.Variable(0.0, name="total")
    >>> def step(x):
    ...     total.assign_add(tf.reduce_sum(x))
    ...     return x - total
    >>> found = find_recomputed(traced_loop(step, total)[0])
    >>> [tensor.name for tensor in found.given]
    ['x:0']
    """

    operations: Mapping[str, Any]
    given: tuple[Any, ...]
    """The tensors that these operations read. The replicas' values of each become one."""
    alone: frozenset[str]
    """The operations whose values nothing else needs on the replicas: no gradient, and nothing that is written."""


def find_recomputed(traced: Traced) -> Recomputed:
    """Find the operations of a step that run once more for the whole batch.

    >>> import tensorflow as tf
    >>> from autodist_core.loops.example import traced_loop
    >>> total = tf.Variable(0.0, name="total")
    >>> def step(x):
    ...     total.assign_add(tf.reduce_sum(x))
    ...     return x - total
    >>> sorted(operation.type for operation in find_recomputed(traced_loop(step, total)[0]).operations.values())
    ['Identity', 'ReadVariableOp', 'Sub']
    """
    return _Search(traced).run()


class _Search:
    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._operations = traced.graph.get_operations()
        self._kinds = {source.variable.name: source.variable.kind for source in traced.sources}
        self._markers = {marker.name: marker for marker in traced.markers}

    def run(self) -> Recomputed:
        found: dict[str, Any] = {}
        given: dict[int, Any] = {}
        for operation in self._in_results():
            if self._reads_combined(operation) or operation.name in self._of_gradients or any(
                source.name in found for source in sources(operation)
            ):
                found[operation.name] = operation
        for operation in found.values():
            given.update({id(each): each for each in operation.inputs if self._is_given(each, found)})
        needed = reached_from([*self._markers.values(), *self._effects()], sources) if found else {}
        return Recomputed(found, tuple(given.values()), frozenset(found.keys() - needed.keys()))

    def _in_results(self) -> Iterator[Any]:
        needed = reached_from((output.op for output in self._traced.outputs), sources)
        for operation in self._operations:
            writes = any(touch.writes for touch in self._touches.get(operation.name, ()))
            if operation.name in needed and operation.name not in self._traced.updates and not writes:
                yield operation

    def _is_given(self, tensor: Any, found: Mapping[str, Any]) -> bool:
        of_update = tensor.op.name in self._traced.updates or tensor.op.name in self._markers
        return tensor.op.name not in found and tensor.dtype != "resource" and not of_update

    @cached_property
    def _touches(self) -> dict[str, tuple[Touch, ...]]:
        return touches_of(self._operations, self._traced.handles)

    @cached_property
    def _last_write(self) -> dict[str, int]:
        return {
            touch.variable: at for at, operation in enumerate(self._operations)
            if operation.name not in self._traced.updates
            for touch in self._touches.get(operation.name, ())
            if touch.writes and self._kinds[touch.variable] != "seed"
        }

    @cached_property
    def _position(self) -> dict[str, int]:
        return {operation.name: at for at, operation in enumerate(self._operations)}

    def _reads_combined(self, operation: Any) -> bool:
        return any(
            self._position[operation.name] > self._last_write.get(touch.variable, len(self._operations))
            for touch in self._touches.get(operation.name, ())
        )

    @cached_property
    def _of_gradients(self) -> frozenset[str]:
        """The operations behind gradients, outside the updates, that no gradient needs."""
        before = reached_from(self._markers.values(), sources)
        behind: set[str] = set()
        written: set[str] = set()
        for operation in self._operations if self._markers else ():
            if operation.name in self._markers:
                continue
            touched = () if operation.name in self._traced.updates else self._touches.get(operation.name, ())
            reads = any(not touch.writes and touch.variable in written for touch in touched)
            if reads or any(each.name in behind or each.name in self._markers for each in sources(operation)):
                behind.add(operation.name)
                written.update(touch.variable for touch in touched if touch.writes)
        return frozenset(behind - before.keys())

    def _effects(self) -> Iterator[Any]:
        for operation in self._traced.graph.control_outputs:
            if operation.type not in ("ReadVariableOp", "Placeholder"):
                yield operation
