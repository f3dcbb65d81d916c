"""Find the values in the updates of a function of `run()` that are added up over the replicas a second time.

In: the markers of values that are added up, the operations of the updates, and the recorded gradients. Out: how the
markers count. An update gets the sum of a gradient already, so the first marker behind a gradient changes nothing. A
further one adds up what is the same on all replicas, which is a multiple::

    sum  = all_reduce("SUM", gradient)          the sum, which the update has
    mean = sum / replicas
    optimizer.apply([mean], [weight])           adds `mean` up: times the number of replicas
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from autodist_core.capture.traced import Counted
from autodist_core.errors import CaptureError
from autodist_core.loops.gradients.recording import Differentiation


def summed_again(
    markers: Sequence[Any], updates: Collection[str], found: Sequence[Differentiation], replicas: int
) -> dict[str, Counted]:
    """How the markers in updates count that add up what is the same on all replicas, by their names.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     total = tf.identity(3.0, name="total")
    ...     again = tf.identity(total / 2.0, name="again")
    >>> found = summed_again([total, again], {"again"}, (), replicas=2)
    >>> {name: counted.times for name, counted in found.items()}
    {'again': 2}
    """
    gradients = {marker.op.name for call in found for each in call.gradients for marker in each.markers}
    names = {marker.op.name for marker in markers}
    counted = {}
    for marker in markers:
        if marker.op.name not in updates:
            continue
        reached = _reached(marker.op.inputs[0], names | gradients)
        sums, own = reached & names, reached & gradients
        if sums and own:
            raise CaptureError(
                "all_reduce adds up a value that is made of a replica's own gradients and of sums over the replicas "
                f"({sorted(sums)[0]!r}), and an update gets the result. Call all_reduce for the gradients first, and "
                "put the sums together. An optimizer's apply calls all_reduce, too: give it all gradients as sums, or "
                "none."
            )
        if sums:
            counted[marker.op.name] = Counted(0, marker.dtype.base_dtype, 0, replicas)
    return counted


def _reached(tensor: Any, ends: Collection[str]) -> set[str]:
    """The names of the operations of which a tensor is made. Nothing is followed from `ends`."""
    found: set[str] = set()
    waiting, seen = [tensor], {tensor.name}
    while waiting:
        current = waiting.pop()
        operation = current.op
        found.add(operation.name)
        inputs = () if operation.name in ends else operation.inputs
        # What a function with a gradient of its own returns is an IdentityN, which has the function's arguments, too.
        behind = [inputs[current.value_index]] if operation.type == "IdentityN" and inputs else inputs
        waiting += [each for each in behind if each.name not in seen]
        seen.update(each.name for each in behind)
    return found
