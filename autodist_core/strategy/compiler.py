"""StrategyCompiler: checks a Strategy against one model and one cluster, and freezes it.

It stands after the builder and before the plan and the kernels. A Strategy, a GraphItem and a ResourceSpec come in, and
a CompiledStrategy goes out. Later stages read the CompiledStrategy and the GraphItem, and no protobuf message.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from autodist_core.errors import StrategyError
from autodist_core.resource_spec import DeviceSpec, ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.checker import variable_name, violations
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan
from autodist_core.strategy.partition import PartitionerConfig
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import POWER_SGD_RANK, AllReducePlan, Node, Synchronizer, common_synchronizer


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
        replicas, nodes = strategy.replicas, strategy.nodes
        wrong = violations(replicas, nodes, self._graph_item, self._resource_spec)
        if wrong:
            raise StrategyError(*wrong, subject=f"strategy {strategy.id}")
        by_name, piece_numbers = {variable_name(node.var_name): node for node in nodes}, count()
        plans = tuple(
            _variable_plan(by_name[name], variable, piece_numbers)
            for name, variable in self._graph_item.trainable_var_op_to_var.items()
        )
        return CompiledStrategy(strategy.id, tuple(map(_canonical, replicas)), plans, tuple(strategy.notes))


def _variable_plan(node: Node, variable: Variable, piece_numbers: Iterator[int]) -> VariablePlan:
    used = node.used
    if not node.partitioner:
        return VariablePlan(variable, _synchronizer(used[0], 0, next(piece_numbers)), note=node.note)
    config = PartitionerConfig(partition_str=node.partitioner)
    sizes = config.sizes(variable.shape[config.axis])
    synchronizers = [
        _synchronizer(used[index % len(used)], index, next(piece_numbers)) for index in range(config.num_shards)
    ]
    shards = tuple(
        VariablePlan(variable.part(index, config.axis, sum(sizes[:index]), size, handle=""), synchronizers[index])
        for index, size in enumerate(sizes)
    )
    shown = common_synchronizer(synchronizers) or synchronizers[0]
    return VariablePlan(variable, shown, shards, node.note)


def _synchronizer(said: Synchronizer | None, shard: int, piece: int) -> Synchronizer:
    """The synchronizer of one shard, or of a variable that is not partitioned, which counts as shard 0."""
    assert said is not None, "the checks let no piece without a synchronizer pass"
    if isinstance(said, AllReducePlan):
        group = piece // said.chunk_size if said.group is None else said.group
        rank = (said.power_sgd_rank or POWER_SGD_RANK) if said.compressor == "PowerSGDCompressor" else 0
        return replace(said, group=group, power_sgd_rank=rank)
    # A node that speaks for several shards may name several destinations. The shards take them in turn.
    return replace(said, destinations=(_canonical(said.destinations[shard % len(said.destinations)]),))


def _canonical(name: str) -> str:
    return DeviceSpec.parse(name).name
