"""AllReduce, PartitionedAR and RandomAxisPartitionAR: gradients are all-reduced, and every replica runs every update.

Every replica holds every variable, or all shards of it. A GraphItem and a ResourceSpec come in, and a Strategy goes
out, as from every builder.
"""

import random
from dataclasses import dataclass, field
from itertools import count

from autodist_core.errors import amount
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.options import AllReduceOptions, check_integer, replica_devices
from autodist_core.strategy.partition import shard_count
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import Node


@dataclass(frozen=True)
class _AllReduced(AllReduceOptions, StrategyBuilder):
    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        replicas, index, nodes = replica_devices(resource_spec), count(), []
        for variable in graph_item.trainable_var_op_to_var.values():
            axis = self._axis(variable)
            shards = shard_count(variable.shape[axis], len(replicas)) if axis is not None and variable.shape else 1
            if shards == 1:
                used = [self.all_reduce_whole(next(index), variable, resource_spec)]
            else:
                used = [self.all_reduce(next(index)) for _ in range(shards)]
            nodes.append(Node.of(variable, used, axis or 0))
        split, notes = sum(bool(node.part_config) for node in nodes), []
        if split and self.factor_rows:
            whose = f"{amount(split, 'variable that is', 'variables that are')} split"
            notes.append(f"factor_rows has no effect on {whose}: the gradients of shards travel")
        return Strategy.of(replicas, nodes, notes)

    def _axis(self, variable: Variable) -> int | None:
        """The axis along which a variable is split; None if it stays whole."""
        return None


@dataclass(frozen=True)
class AllReduce(_AllReduced):
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


@dataclass(frozen=True)
class PartitionedAR(_AllReduced):
    """Splits each variable along axis 0 into shards, and all-reduces the gradient of each shard.

    The number of shards follows the rule of PartitionedPS, with the number of replicas in place of that of CPU devices.

    >>> from autodist_core.step.graph_item import Variable
    >>> print(PartitionedAR().build(GraphItem((Variable("w", (6, 4), "float32"),)), ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      w : split(axis=0, shards=2) all_reduce(group=0)
    """

    def _axis(self, variable: Variable) -> int:
        return 0


@dataclass(frozen=True)
class RandomAxisPartitionAR(_AllReduced):
    """Splits each variable as PartitionedAR does, but along a random axis of at least two entries.

    A sparse variable is split along axis 0. The axis of a variable depends on ``seed`` and on the name of the variable,
    and not on the other variables of the model.

    >>> from autodist_core.step.graph_item import Variable
    >>> item, spec = GraphItem((Variable("w", (6, 4), "float32"),)), ResourceSpec.local(cpus=2)
    >>> [RandomAxisPartitionAR(seed=seed).build(item, spec).node_config[0].partitioner for seed in (0, 1)]
    ['1,2', '2,1']
    """

    seed: int = field(default=0, kw_only=True)
    """Equal seeds give equal strategies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("RandomAxisPartitionAR", "seed", self.seed, 0)

    def _axis(self, variable: Variable) -> int:
        axes = [axis for axis, size in enumerate(variable.shape) if size > 1]
        if variable.is_sparse or not axes:
            return 0
        return random.Random(f"{self.seed} {variable.name}").choice(axes)
