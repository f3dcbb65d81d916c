"""AllReduce: every replica holds every variable, and runs every update on the gradient of the whole batch.

A GraphItem and a ResourceSpec come in, and a Strategy goes out, as from every builder.
"""

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
    """Sums the gradients of every variable over the replicas with a collective.

    ``chunk_size`` consecutive variables form one group. Gradients of one group may travel together.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("dense/kernel", (6, 4), "float32"), Variable("dense/bias", (4,), "float32")))
    >>> print(AllReduce(chunk_size=1).build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      dense/kernel : all_reduce(group=0)
      dense/bias   : all_reduce(group=1)
    >>> AllReduce(compressor="HorovodCompresser")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: AllReduce(compressor='HorovodCompresser'): unknown compressor. Did you mean
        'HorovodCompressor'? Known: NoneCompressor, HorovodCompressor, HorovodCompressorEF, PowerSGDCompressor.
    """

    def __post_init__(self) -> None:
        self.check_all_reduce("AllReduce")

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        strategy = begin(resource_spec)
        for index, (name, variable) in enumerate(graph_item.trainable_var_op_to_var.items()):
            node = strategy.node_config.add(var_name=name)
            self.write_all_reduce(node, index, self.rows_of(variable, resource_spec))
        return strategy
