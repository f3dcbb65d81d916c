"""PS, PSLoadBalancing, PartitionedPS and UnevenPartitionedPS: CPU devices hold the variables, and run their updates.

A variable is in one piece, or is split along axis 0. A GraphItem and a ResourceSpec come in, and a Strategy goes out,
as from every builder.
"""

from dataclasses import dataclass
from typing import ClassVar

from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.options import PSOptions, reduction_devices, replica_devices, spread
from autodist_core.strategy.partition import shard_count, uneven_shard_count
from autodist_core.strategy.strategy import Strategy


@dataclass(frozen=True)
class _OnServers(PSOptions, StrategyBuilder):
    most_servers: ClassVar[int | None] = None

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        servers = reduction_devices(resource_spec)[: self.most_servers]

        def cut(variable: Variable) -> tuple[int, int]:
            return 0, max(1, self._shards(variable.shape[0], len(servers))) if variable.shape else 1

        alone = self._shards(1, 1) and len(servers) == 1
        notes = [f"one reduction device ({servers[0]}): variables stay whole"] if alone else []
        return Strategy.of(replica_devices(resource_spec), spread(graph_item, self, servers, cut), notes)

    def _shards(self, length: int, servers: int) -> int:
        """In how many shards axis 0 is split for so many servers; 0 if variables stay whole."""
        return 0


@dataclass(frozen=True)
class PS(_OnServers):
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

    most_servers = 1


@dataclass(frozen=True)
class PSLoadBalancing(_OnServers):
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


@dataclass(frozen=True)
class PartitionedPS(_OnServers):
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

    def _shards(self, length: int, servers: int) -> int:
        return shard_count(length, servers)


@dataclass(frozen=True)
class UnevenPartitionedPS(_OnServers):
    """Splits each variable as PartitionedPS does, but into the smallest number of shards that does not divide axis 0.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("table", (6, 4), "float32"),))
    >>> print(UnevenPartitionedPS().build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      table : split(axis=0, shards=4) ps(localhost:CPU:0, localhost:CPU:1, localhost:CPU:0, localhost:CPU:1)
    """

    def _shards(self, length: int, servers: int) -> int:
        return uneven_shard_count(length, servers)
