"""PS, PSLoadBalancing, PartitionedPS and UnevenPartitionedPS: CPU devices hold the variables, and run their updates.

A variable is in one piece, or is split along axis 0. A GraphItem and a ResourceSpec come in, and a Strategy goes out,
as from every builder.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.options import PSOptions, reduction_devices, replica_devices, spread
from autodist_core.strategy.partition import shard_count, uneven_shard_count
from autodist_core.strategy.strategy import Strategy


@dataclass(frozen=True)
class PS(PSOptions, StrategyBuilder):
    """Puts every variable on the first CPU device.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("w", (6, 4), "float32"), Variable("b", (4,), "float32")))
    >>> print(PS(staleness=2).build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      w : ps(localhost:CPU:0, staleness=2)
      b : ps(localhost:CPU:0, staleness=2)
    >>> PS(staleness=3, sync=False)
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: PS(staleness=3, sync=False): staleness bounds a synchronous run; set sync=True
        or staleness=0.
    """

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        return _build(self, graph_item, resource_spec, reduction_devices(resource_spec)[:1])


@dataclass(frozen=True)
class PSLoadBalancing(PSOptions, StrategyBuilder):
    """Puts each variable, in graph order, on the CPU device that holds the fewest bytes so far.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("w", (6, 4), "float32"), Variable("b", (4,), "float32")))
    >>> print(PSLoadBalancing().build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      w : ps(localhost:CPU:0)
      b : ps(localhost:CPU:1)
    """

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        return _build(self, graph_item, resource_spec, reduction_devices(resource_spec))


@dataclass(frozen=True)
class PartitionedPS(PSOptions, StrategyBuilder):
    """Splits each variable along axis 0 into shards, and spreads the shards over the CPU devices.

    :func:`autodist_core.strategy.partition.shard_count` decides the number of shards. It prefers shards of equal size.
    A shard goes to a CPU device with the fewest shards of the same variable; of several such devices, to the one with
    the fewest bytes. With one CPU device, no variable is split.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("table", (6, 4), "float32"), Variable("scale", (), "float32")))
    >>> print(PartitionedPS().build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      table : split(axis=0, shards=2) ps(localhost:CPU:0, localhost:CPU:1)
      scale : ps(localhost:CPU:0)
    """

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        return _build(self, graph_item, resource_spec, reduction_devices(resource_spec), shard_count)


@dataclass(frozen=True)
class UnevenPartitionedPS(PSOptions, StrategyBuilder):
    """Splits each variable as PartitionedPS does, but into the smallest number of shards that does not divide axis 0.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("table", (6, 4), "float32"),))
    >>> print(UnevenPartitionedPS().build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      table : split(axis=0, shards=4) ps(localhost:CPU:0, localhost:CPU:1, localhost:CPU:0, localhost:CPU:1)
    """

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        return _build(self, graph_item, resource_spec, reduction_devices(resource_spec), uneven_shard_count)


def _build(
    options: PSOptions, graph_item: GraphItem, resource_spec: ResourceSpec, servers: Sequence[str],
    shards_of: Callable[[int, int], int] | None = None,
) -> Strategy:
    """Spread the variables over servers. `shards_of` says in how many shards an axis is split for so many servers."""
    def cut(variable: Variable) -> tuple[int, int]:
        return 0, shards_of(variable.shape[0], len(servers)) if shards_of and variable.shape else 1

    notes = [f"one reduction device ({servers[0]}): variables stay whole"] if shards_of and len(servers) == 1 else []
    return Strategy.of(replica_devices(resource_spec), spread(graph_item, options, servers, cut), notes)
