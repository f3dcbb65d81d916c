"""Cut a batch into the replicas' slices.

In: the arrays of a batch, and its number of examples. Out: for each replica, the rows of its slice. The steps of a
session feed these rows to the replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from autodist_core.step.graph_item import GraphItem


class BatchSlicer:
    """Cuts the arrays of a captured step's batches. An array without a batch axis goes to every replica.

    >>> from autodist_core.step.graph_item import Tensor
    >>> import numpy as np
    >>> item = GraphItem((), inputs=(Tensor("x", "float32", (None, 2)), Tensor("rate", "float32", ())))
    >>> [part.shape for part in BatchSlicer(item).rows([np.zeros((7, 2)), np.zeros(())], [0, 1], 3, 5)]
    [(2, 2), ()]
    """

    def __init__(self, item: GraphItem) -> None:
        self._batched = {index for index, tensor in enumerate(item.inputs) if tensor.has_rows}

    def rows(self, arrays: Sequence[Any], inputs: Sequence[int], start: int, stop: int) -> list[Any]:
        """The rows from `start` to `stop` of the inputs with these indices."""
        return [arrays[index][start:stop] if index in self._batched else arrays[index] for index in inputs]


def slices(total: int, parts: int) -> list[tuple[int, int]]:
    """Where `numpy.array_split` cuts `total` rows into `parts`.

    >>> slices(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    size, extra = divmod(total, parts)
    bounds = [index * size + min(index, extra) for index in range(parts + 1)]
    return list(pairwise(bounds))
