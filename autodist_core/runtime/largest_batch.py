"""Choose for which size of a batch the graph of a step is built.

In: the sizes of the batches, one after the other. Out: the size of the largest one, and a number that changes when a
larger batch needs another graph. The factors of gradients travel in small batches only (`kernel/analysis/factored.py`).
A graph for large batches serves smaller ones too: it only sends gradients where factors would be smaller. So the last
batch of an epoch, which is smaller, needs no graph of its own.
"""

from __future__ import annotations

from functools import cached_property

from autodist_core.kernel import Placement, factor_limits
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex


class LargestBatch:
    """The size of the largest batch of a step so far.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import AllReduce
    >>> largest = LargestBatch(example_step(), example_placement(AllReduce()))
    >>> [(largest.after(size), largest.size) for size in (8, 100, 7)]
    [(0, 8), (0, 100), (0, 100)]
    """

    def __init__(self, item: GraphItem, placement: Placement) -> None:
        self._item, self._placement = item, placement
        self.size = 0

    def after(self, size: int) -> int:
        """Note a batch of this size; return how many variables have gradients that travel by themselves from now on."""
        self.size = max(self.size, size)
        return sum(limit < self.size for limit in self._limits)

    @cached_property
    def _limits(self) -> tuple[int, ...]:
        step = StepIndex.of(self._placement.partitioner.apply(self._item))
        names = [replica.name for replica in self._placement.replicas]
        return tuple(factor_limits(step, self._placement.plans, names).values())
