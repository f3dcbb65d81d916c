"""Find the values in the updates of a function of `run()` that are added up although they are the same on all replicas.

In: the markers of values that are added up, the operations of the updates, and the recorded gradients. Out: how the
markers count. An update gets the sum of a gradient already, so the first marker behind a gradient changes nothing. A
further one adds up what is the same on all replicas, which is a multiple::

    sum  = all_reduce("SUM", gradient)          the sum, which the update has
    mean = sum / replicas
    optimizer.apply([mean], [weight])           adds `mean` up: times the number of replicas

The sum of sparse gradients has the rows of all replicas. What is added up a second time has each row as many times.
A value that is made of no gradient is the same on all replicas, too: its sum is a multiple of it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from autodist_core.capture.gradients.recording import Differentiation
from autodist_core.capture.traced import Counted
from autodist_core.errors import CaptureError
from autodist_core.step.reaching import reached


def summed_again(
    markers: Sequence[Any], slices: Sequence[tuple[Any, Any]], updates: Collection[str],
    found: Sequence[Differentiation], replicas: int,
) -> dict[str, Counted]:
    """How the markers in updates count that add up what is the same on all replicas, by their names.

    `slices` has the markers of values and indices of sparse tensors. Such a sum has the rows of all replicas, so rows
    that are the same on all replicas come as many times.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     total = tf.identity(3.0, name="total")
    >>> found = summed_again([total], (), {"total"}, (), replicas=2)
    >>> {name: counted.times for name, counted in found.items()}
    {'total': 2}
    """
    origins = Origins([*markers, *(marker for both in slices for marker in both)], found)
    counted = {}
    for group in [*((marker,) for marker in markers), *slices]:
        if not any(marker.op.name in updates for marker in group):
            continue
        sums, own = origins.of([marker.op.inputs[0] for marker in group])
        if sums and own:
            raise CaptureError(
                "all_reduce adds up a value that is made of a replica's own gradients and of sums over the replicas "
                f"({sorted(sums)[0]!r}), and an update gets the result. Call all_reduce for the gradients first, and "
                "put the sums together. An optimizer's apply calls all_reduce, too: give it all gradients as sums, or "
                "none."
            )
        for marker in () if own else group:
            counted[marker.op.name] = Counted(0, marker.dtype.base_dtype, 0, replicas, repeated=len(group) > 1)
    return counted


class Origins:
    """The sums over the replicas, and the gradients, of which values are made.

    >>> import tensorflow as tf
    >>> from autodist_core.capture import Marked
    >>> with tf.Graph().as_default():
    ...     gradient = tf.identity(3.0, name="gradient")
    ...     total, constant = tf.identity(gradient, name="total"), tf.identity(2.0, name="constant")
    ...     half = total / constant
    >>> Origins([total, constant], [Differentiation((), (), (Marked(None, 0, gradient),))]).of([half])
    ({'total'}, set())
    """

    def __init__(self, markers: Sequence[Any], found: Sequence[Differentiation]) -> None:
        self._sums = {marker.op.name for marker in markers}
        self._gradients = {marker.op.name for call in found for marker in call.markers}
        # A sum of constants is a constant.
        while constants := {
            marker.op.name for marker in markers
            if marker.op.name in self._sums and self.of([marker.op.inputs[0]]) == (set(), set())
        }:
            self._sums -= constants

    def of(self, tensors: Sequence[Any]) -> tuple[set[str], set[str]]:
        """The names of the sums and of the gradients of which tensors are made.

        A tensor that is made of neither may be read from a variable that gradients or sums were written to before.
        """
        waiting, seen = list(tensors), set[str]()
        while waiting:
            reached = _reached(waiting, self._sums | self._gradients)
            sums, own = reached.keys() & self._sums, reached.keys() & self._gradients
            if sums or own:
                return sums, own
            seen.update(reached)
            waiting = [each for each in _written_before(reached.values()) if each.op.name not in seen]
        return set(), set()


def _written_before(operations: Iterable[Any]) -> Iterator[Any]:
    """What is written to the variables that these operations read, by operations that were made before."""
    for read in operations:
        if read.type == "ReadVariableOp":
            order = {each.name: index for index, each in enumerate(read.graph.get_operations())}
            for writer in read.inputs[0].consumers():
                if writer.type != "ReadVariableOp" and order[writer.name] < order[read.name]:
                    yield from writer.inputs[1:]


def _reached(tensors: Sequence[Any], ends: Collection[str]) -> dict[str, Any]:
    """The operations of which tensors are made, by name. Nothing is followed from `ends`."""
    def before(output: tuple[Any, int]) -> list[tuple[Any, int]]:
        operation, index = output
        inputs = () if operation.name in ends else operation.inputs
        # What a function with a gradient of its own returns is an IdentityN, which has the function's arguments, too.
        read = [inputs[index]] if operation.type == "IdentityN" and inputs else inputs
        return [(each.op, each.value_index) for each in read]

    found = reached([(each.op, each.value_index) for each in tensors], before)
    return {operation.name: operation for operation, _ in found}
