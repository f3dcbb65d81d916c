"""How a batch is cut into the replicas' slices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from autodist_core.step.graph_item import GraphItem


class Batches:
    """Cuts the arrays of a captured step's batches; what has no batch axis goes to every replica."""

    def __init__(self, item: GraphItem) -> None:
        self._batched = {index for index, tensor in enumerate(item.inputs) if tensor.has_rows}

    def part(self, arrays: Sequence[Any], inputs: Sequence[int], start: int, stop: int) -> list[Any]:
        """Of the inputs with these indices, the rows from `start` to `stop`."""
        return [arrays[index][start:stop] if index in self._batched else arrays[index] for index in inputs]


def slices(total: int, parts: int) -> list[tuple[int, int]]:
    """Where `numpy.array_split` cuts `total` rows into `parts`.

    >>> slices(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    size, extra = divmod(total, parts)
    bounds = [index * size + min(index, extra) for index in range(parts + 1)]
    return list(pairwise(bounds))
