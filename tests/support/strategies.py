"""Strategies by name: the package's builders, and hand-written ones that no builder makes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from autodist_core import ResourceSpec
from autodist_core.proto import strategy_pb2
from autodist_core.strategy import BUILDERS as OF_THE_PACKAGE
from autodist_core.strategy import AllReduce, Sharded
from autodist_core.strategy.base import Strategy, StrategyBuilder
from autodist_core.strategy.strategy import COMPRESSORS


class HandWritten(StrategyBuilder):
    """Lets `decide` fill in the node of one variable after the other."""

    def __repr__(self):
        options = ", ".join(f"{name}={value}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"

    def build(self, graph_item, resource_spec):
        """One node for each variable."""
        strategy = Strategy()
        strategy.graph_config.replicas.extend(name for name, _ in resource_spec.replica_devices)
        servers = [name for name, _ in resource_spec.cpu_devices]
        for index, (name, variable) in enumerate(graph_item.trainable_var_op_to_var.items()):
            node = strategy_pb2.Strategy.Node(var_name=name)
            self.decide(index, node, variable, servers)
            strategy.node_config.append(node)
        return strategy


def serve(node, *servers):
    """The variable, or the shard, is on a server; several are for the shards in turn."""
    node.PSSynchronizer.reduction_destinations.extend(servers)
    node.PSSynchronizer.sync = True


class Alternating(HandWritten):
    """In turns: a server on the first CPU, all-reduce, a server on the last CPU."""

    def decide(self, index, node, variable, servers):
        """By the variable's index."""
        if index % 3 == 1:
            node.AllReduceSynchronizer.group = 0
        else:
            serve(node, servers[0 if index % 3 == 0 else -1])


class Mixed(HandWritten):
    """In turns: split along its last axis over all servers, half a server's and half everyone's, on a server, reduced.

    The last axis of most variables here does not divide, so that shards are of several sizes.
    """

    def decide(self, index, node, variable, servers):
        """By the variable's index, as far as its shape allows."""
        shape = variable.shape
        if index % 4 == 0 and shape and shape[-1] > 1:
            counts = [1] * (len(shape) - 1) + [min(3, shape[-1])]
            node.partitioner = ",".join(map(str, counts))
            serve(node, *servers[: max(counts)])
        elif index % 4 == 1 and shape and shape[0] > 1:
            node.partitioner = ",".join(map(str, [2] + [1] * (len(shape) - 1)))
            serve(node.part_config.add(), servers[-1])
            node.part_config.add().AllReduceSynchronizer.group = 0
        elif index % 4 == 3:
            node.AllReduceSynchronizer.group = 0
        else:
            serve(node, servers[0])


class EveryAxis(HandWritten):
    """Every variable in two shards along one axis, the first that is long enough counting from `first`."""

    def __init__(self, first: int = 0, shards: int = 2):
        self.first, self.shards = first, shards

    def decide(self, index, node, variable, servers):
        """Along the chosen axis, or whole."""
        rank = len(variable.shape)
        axes = [(self.first + place) % rank for place in range(rank)] if rank else []
        axis = next((axis for axis in axes if variable.shape[axis] >= self.shards), None)
        if axis is not None:
            node.partitioner = ",".join(str(self.shards if place == axis else 1) for place in range(rank))
        serve(node, *servers[: 1 if axis is None else self.shards])


class UnevenShards(HandWritten):
    """Weights that are kept for some uses, and of which each replica owns more than the one before."""

    def __init__(self, **options):
        self.options = options

    def build(self, graph_item, resource_spec):
        """The shares depend on the replicas."""
        shares = {name: 1 + index for index, (name, _) in enumerate(resource_spec.replica_devices)}
        return Sharded(whole_bytes=0, shares=shares, **self.options).build(graph_item, resource_spec)


_ORDER = "AllReduce PS PSLoadBalancing Parallax PartitionedPS UnevenPartitionedPS PartitionedAR RandomAxisPartitionAR"
BUILDERS = {name: OF_THE_PACKAGE[name] for name in _ORDER.split()} | {"Sharded": partial(Sharded, whole_bytes=0)}
LOSSY = tuple(AllReduce(compressor=name) for name in COMPRESSORS if name != "NoneCompressor")
"""One for each compressor."""
GATHERED = Sharded(weights="gathered", whole_bytes=0)
HAND_WRITTEN = {
    "Gathered": lambda: GATHERED, "KeptForSome": partial(UnevenShards, weights=3), "Alternating": Alternating,
    "Mixed": Mixed, "EveryAxis": EveryAxis,
}  # fmt: skip


def strategy_named(name: str | StrategyBuilder | None) -> StrategyBuilder | None:
    """A builder of the package, or a hand-written one; a builder itself is as good."""
    return (BUILDERS | HAND_WRITTEN)[name]() if isinstance(name, str) else name


def on_local_replicas(
    strategy: str | StrategyBuilder | None, replicas: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings for so many logical CPUs; every replica has a memory of its own unless told otherwise."""
    spec = ResourceSpec.local(cpus=replicas)
    return {"resource_spec": spec, "strategy": strategy_named(strategy), "share_memory": False, **settings}
