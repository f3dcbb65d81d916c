"""AllReduce: every replica holds every variable."""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.options import AllReduceOptions, begin
from autodist_core.strategy.strategy import Strategy

__all__ = ["AllReduce"]


@dataclass(frozen=True)
class AllReduce(AllReduceOptions, StrategyBuilder):
    """Gradients are summed over the replicas by a collective, ``chunk_size`` consecutive variables in one group.

    >>> AllReduce(compressor="HorovodCompresser")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: AllReduce(compressor='HorovodCompresser'): unknown compressor. Did you mean
        'HorovodCompressor'? Known: NoneCompressor, HorovodCompressor, HorovodCompressorEF, PowerSGDCompressor.
    """

    def __post_init__(self) -> None:
        self.check_all_reduce("AllReduce")

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """The strategy for this model on these machines."""
        strategy = begin(resource_spec)
        for index, name in enumerate(graph_item.trainable_var_op_to_var):
            self.write_all_reduce(strategy.node_config.add(var_name=name), index)
        return strategy
