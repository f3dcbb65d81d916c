"""Hand-written strategies that no builder makes."""

from __future__ import annotations

from autodist_core.proto import strategy_pb2
from autodist_core.strategy.base import Strategy, StrategyBuilder


class Alternating(StrategyBuilder):
    """In turns: a server on the first CPU, all-reduce, a server on the last CPU."""

    def build(self, graph_item, resource_spec):
        """One node for each variable."""
        strategy = Strategy()
        strategy.graph_config.replicas.extend(name for name, _ in resource_spec.replica_devices)
        servers = [name for name, _ in resource_spec.cpu_devices]
        for index, name in enumerate(graph_item.trainable_var_op_to_var):
            node = strategy_pb2.Strategy.Node(var_name=name)
            if index % 3 == 1:
                node.AllReduceSynchronizer.group = 0
            else:
                node.PSSynchronizer.reduction_destinations.append(servers[0 if index % 3 == 0 else -1])
                node.PSSynchronizer.sync = True
            strategy.node_config.append(node)
        return strategy
