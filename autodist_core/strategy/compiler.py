"""StrategyCompiler: checks a Strategy against one model and one cluster, and freezes it.

It stands after the builder and before the plan and the kernels. A Strategy, a GraphItem and a ResourceSpec come in, and
a CompiledStrategy goes out. Later stages read the CompiledStrategy and the GraphItem, and no protobuf message.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from autodist_core.errors import StrategyError
from autodist_core.proto import strategy_pb2
from autodist_core.resource_spec import DeviceSpec, ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.checker import variable_name, violations
from autodist_core.strategy.compiled import CompiledStrategy, Shard, VariablePlan, common_synchronizer
from autodist_core.strategy.partition import PartitionerConfig, shard_sizes
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import Synchronizer, lower_all_reduce, lower_ps


class StrategyCompiler:
    """Checks strategies against one model and one cluster, and makes compiled strategies of them.

    >>> from autodist_core.strategy import AllReduce
    >>> item = GraphItem((Variable("dense/kernel", (784, 128), "float32"), Variable("dense/bias", (128,), "float32")))
    >>> spec = ResourceSpec.local(cpus=2)
    >>> print(StrategyCompiler(item, spec).compile(AllReduce(chunk_size=1).build(item, spec)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      dense/kernel : f32[784,128]  all_reduce(group=0)
      dense/bias   : f32[128]      all_reduce(group=1)
    """

    def __init__(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> None:
        self._graph_item = graph_item
        self._resource_spec = resource_spec

    def compile(self, strategy: Strategy) -> CompiledStrategy:
        """Return the frozen form of ``strategy``, or raise a StrategyError that lists everything wrong with it."""
        if not isinstance(strategy, Strategy):
            raise StrategyError(
                "a StrategyBuilder's build must return a Strategy: make one with Strategy(), fill its graph_config and "
                f"node_config, and return it. Received: {strategy!r} ({type(strategy).__name__})."
            )
        wrong = violations(strategy, self._graph_item, self._resource_spec)
        if wrong:
            raise StrategyError(*wrong, subject=f"strategy {strategy.id}")
        nodes = {variable_name(node.var_name): node for node in strategy.node_config}
        piece_numbers = count()
        plans = tuple(
            _variable_plan(nodes[name], variable, piece_numbers)
            for name, variable in self._graph_item.trainable_var_op_to_var.items()
        )
        replicas = tuple(_canonical(replica) for replica in strategy.graph_config.replicas)
        return CompiledStrategy(strategy.id, replicas, plans, tuple(strategy.notes))


def _variable_plan(node: strategy_pb2.Strategy.Node, variable: Variable, piece_numbers: Iterator[int]) -> VariablePlan:
    if not node.partitioner:
        return VariablePlan(variable, _synchronizer(node, 0, piece_numbers), note=node.note)
    config = PartitionerConfig(partition_str=node.partitioner)
    sizes = shard_sizes(variable.shape[config.axis], config.num_shards)
    parts = [part if part.WhichOneof("synchronizer") else node for part in node.part_config] or [
        node
    ] * config.num_shards
    shards = tuple(
        Shard(index, sum(sizes[:index]), size, _synchronizer(part, index, piece_numbers))
        for index, (size, part) in enumerate(zip(sizes, parts, strict=True))
    )
    synchronizers = [shard.synchronizer for shard in shards]
    shown = common_synchronizer(synchronizers) or synchronizers[0]
    return VariablePlan(variable, shown, config.axis, shards, node.note)


def _synchronizer(node: strategy_pb2.Strategy.Node, shard: int, piece_numbers: Iterator[int]) -> Synchronizer:
    """The synchronizer of one shard, or of a variable that is not partitioned, which counts as shard 0."""
    number = next(piece_numbers)
    if node.WhichOneof("synchronizer") == "AllReduceSynchronizer":
        return lower_all_reduce(node.AllReduceSynchronizer, number)
    plan = lower_ps(node.PSSynchronizer)
    # A node that speaks for several shards may name several destinations. The shards take them in turn.
    return replace(plan, destinations=(_canonical(plan.destinations[shard % len(plan.destinations)]),))


def _canonical(name: str) -> str:
    return DeviceSpec.parse(name).name
