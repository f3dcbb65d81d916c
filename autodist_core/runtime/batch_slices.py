"""Cut a batch into the replicas' slices.

In: the arrays of a batch, and its number of examples. Out: for each replica, the rows of its slice. The steps of a
session feed these rows to the replicas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from autodist_core.runtime.composites import Component, own_array
from autodist_core.runtime.data_pipelines import DrawnRows, PipelineSlot
from autodist_core.runtime.kept_arrays import KeptRows, KeptSlot
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.partition import shard_sizes

DataSlot = KeptSlot | PipelineSlot
"""Where machines have the data of which a batch is a part."""


@dataclass(frozen=True, eq=False)
class Each:
    """An array that each replica has of its own, in place of a slice of one array.

    >>> Each(("first", "second"), (3, 2)).rows
    (3, 2)
    """

    values: tuple[Any, ...]
    """The array of each replica."""
    rows: tuple[int, ...]
    """The number of examples of each replica. Replicas without examples come last."""
    drawn: DrawnRows | None = None
    """The array of a batch whose slices these are, if machines can make the batch."""

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(int(getattr(value, "nbytes", 0)) for value in self.values)


def copied(array: Any) -> Any:
    """A copy of an array of a batch.

    >>> copied(Each((np.ones(2), np.ones(1)), (2, 1))).nbytes
    24
    """
    if isinstance(array, Each):
        return array if array.drawn is not None else Each(tuple(map(copied, array.values)), array.rows)
    if isinstance(array, DrawnRows):
        # Nobody changes what tf.data has made.
        return array
    if isinstance(array, KeptRows):
        return replace(array, numbers=np.array(array.numbers))
    return array.copied() if isinstance(array, Component) else own_array(array)


def of_machines(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays of a batch that machines may have: kept ones, or drawn ones; none if the batch itself is fed.

    >>> of_machines([Each((np.ones(2), np.ones(1)), (2, 1))])
    ()
    """
    drawn = [array.drawn for array in arrays if isinstance(array, Each) and array.drawn is not None]
    if drawn and len(drawn) == len(arrays):
        return drawn
    return arrays if arrays and isinstance(arrays[0], KeptRows | DrawnRows) else ()


class BatchSlicer:
    """Cuts the arrays of a captured step's batches. An array without a batch axis goes to every replica.

    >>> from autodist_core.step.graph_item import Tensor
    >>> item = GraphItem((), inputs=(Tensor("x", "float32", (None, 2)), Tensor("rate", "float32", ())))
    >>> [part.shape for part in BatchSlicer(item).rows([np.zeros((7, 2)), np.zeros(())], [0, 1], 0, 3, 5)]
    [(2, 2), ()]
    """

    def __init__(self, item: GraphItem) -> None:
        self._batched = {index for index, tensor in enumerate(item.inputs) if tensor.has_rows}

    @staticmethod
    def bounds(arrays: Sequence[Any], total: int, replicas: int) -> list[tuple[int, int]]:
        """Where each active replica's slice of the batch begins and ends.

        >>> BatchSlicer.bounds([], 7, 3), BatchSlicer.bounds([Each(("a", "b", "c"), (1, 4, 0))], 5, 3)
        ([(0, 3), (3, 5), (5, 7)], [(0, 1), (1, 5)])
        """
        for each in arrays:
            if isinstance(each, Each):
                ends = list(accumulate(each.rows, initial=0))
                return [(start, stop) for start, stop in pairwise(ends) if stop > start] or [(0, 0)]
        return slices(total, replicas)[: max(1, total)]

    def rows(
        self, arrays: Sequence[Any], inputs: Sequence[int], replica: int, start: int, stop: int,
        slot: DataSlot | None = None,
    ) -> list[Any]:
        """The rows from `start` to `stop` of the inputs with these indices; of an `Each`, the replica's array.

        Where the replica's machine has the rows already, `slot` says what is fed in their place.
        """
        told = slot.feeds(of_machines(arrays), inputs, replica, start, stop) if slot is not None else None
        if told is not None:
            return told
        return [self.part(index, arrays[index], replica, start, stop) for index in inputs]

    def part(self, index: int, array: Any, replica: int, start: Any, stop: Any) -> Any:
        """A replica's part of one array: the rows from `start` to `stop`; of an `Each`, the replica's array."""
        if isinstance(array, Each):
            return array.values[replica]
        return array[start:stop] if index in self._batched else array


def slices(total: int, parts: int) -> list[tuple[int, int]]:
    """Where `numpy.array_split` cuts `total` rows into `parts`.

    >>> slices(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    return list(pairwise(accumulate(shard_sizes(total, parts), initial=0)))
