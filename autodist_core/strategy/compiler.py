"""StrategyCompiler: a strategy, checked against the model and the machines, as frozen values for the kernels.

After this stage no message is read any more: the kernels see a CompiledStrategy and the GraphItem, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeGuard

from autodist_core.errors import StrategyError
from autodist_core.proto import strategy_pb2
from autodist_core.resource_spec import DeviceSpec, ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.checker import variable_name, violations
from autodist_core.strategy.partition import PartitionerConfig, is_prime, shard_sizes
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import (
    AllReducePlan,
    PSPlan,
    Synchronizer,
    lower_all_reduce,
    lower_ps,
    split_text,
)

__all__ = ["AllReducePlan", "CompiledStrategy", "PSPlan", "Shard", "StrategyCompiler", "Synchronizer", "VariablePlan"]


@dataclass(frozen=True)
class Shard:
    """One piece of a split variable."""

    index: int
    offset: int
    """Where it begins along the axis."""
    size: int
    """How many entries of the axis it holds."""
    synchronizer: Synchronizer


@dataclass(frozen=True)
class VariablePlan:
    """How one variable is distributed.

    For a split variable the shards say it; ``synchronizer`` then is what they have in common, with the destinations of
    all, or the first shard's where they differ in more than that.
    """

    variable: Variable
    synchronizer: Synchronizer
    axis: int | None = None
    shards: tuple[Shard, ...] = ()
    remark: str = ""
    """The strategy's own words."""

    @property
    def note(self) -> str:
        """The strategy's own words, or why the shards are uneven."""
        if self.remark or self.axis is None:
            return self.remark
        config = PartitionerConfig.along(self.axis, len(self.shards), len(self.variable.shape))
        return _uneven_note(self.variable.shape[self.axis], config)

    @property
    def whole(self) -> VariablePlan:
        """The plan of the variable in one piece: it is where its first shard would be."""
        synchronizer = self.synchronizer
        if isinstance(synchronizer, PSPlan):
            synchronizer = replace(synchronizer, destinations=synchronizer.destinations[:1])
        return VariablePlan(self.variable, synchronizer, remark=self.remark)

    @property
    def pieces(self) -> tuple[tuple[tuple[int, ...], Synchronizer], ...]:
        """Shape and synchronizer of each piece that travels by itself: the shards, or the whole."""
        if self.axis is None:
            return ((self.variable.shape, self.synchronizer),)
        before, after = self.variable.shape[: self.axis], self.variable.shape[self.axis + 1 :]
        return tuple(((*before, shard.size, *after), shard.synchronizer) for shard in self.shards)

    @property
    def text(self) -> str:
        """The synchronizer, after the split if there is one, such as ``split(axis=0, shards=2) ps(a, b)``."""
        if self.axis is None:
            return str(self.synchronizer)
        split = split_text(PartitionerConfig.along(self.axis, len(self.shards), len(self.variable.shape)))
        shared = _shared([shard.synchronizer for shard in self.shards])
        return f"{split} {shared or ' + '.join(str(shard.synchronizer) for shard in self.shards)}"


@dataclass(frozen=True)
class CompiledStrategy:
    """A strategy that can be carried out: one plan for each trainable variable, in graph order."""

    id: str
    replicas: tuple[str, ...]
    variables: tuple[VariablePlan, ...]
    remarks: tuple[str, ...] = ()
    """The strategy's own words about the whole."""
    held: str = ""
    """Why this step keeps the replicas in step although the strategy does not."""

    def carried_out(self, whole: Iterable[str], held: str) -> CompiledStrategy:
        """As a captured step has it: some variables stay whole, and something may keep the replicas in step."""
        names = frozenset(whole)
        plans = (plan.whole if plan.variable.name in names else plan for plan in self.variables)
        return replace(self, variables=tuple(plans), held=held)

    @property
    def compresses(self) -> bool:
        """Whether it has a compressor, for any part of any variable, and replicas between which that is used."""
        used = (synchronizer for plan in self.variables for _, synchronizer in plan.pieces)
        return len(self.replicas) > 1 and any(
            isinstance(each, AllReducePlan) and each.compressor != "NoneCompressor" for each in used
        )

    @property
    def head(self) -> str:
        """The first lines of its text: the id and the replicas."""
        count = len(self.replicas)
        lines = [f"strategy {self.id} @ {count} replica{'' if count == 1 else 's'}"]
        return "\n".join([*lines, *(f"  replica {replica}" for replica in self.replicas)])

    def __str__(self) -> str:
        names = max((len(plan.variable.name) for plan in self.variables), default=0)
        types = max((len(plan.variable.type_text) for plan in self.variables), default=0)
        lines = [
            f"  {plan.variable.name:{names}} : {plan.variable.type_text:{types}}  {plan.text}"
            for plan in self.variables
        ]
        return "\n".join([self.head, *lines])


class StrategyCompiler:
    """Checks strategies against one model and one cluster, and makes them ready for the kernels.

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
        """The frozen form of ``strategy``; a StrategyError lists everything that is wrong with it."""
        if not isinstance(strategy, Strategy):
            raise StrategyError(
                "a StrategyBuilder's build must return a Strategy: make one with Strategy(), fill its graph_config and "
                f"node_config, and return it. Received: {strategy!r} ({type(strategy).__name__})."
            )
        wrong = violations(strategy, self._graph_item, self._resource_spec)
        if wrong:
            raise StrategyError(*wrong, subject=f"strategy {strategy.id}")
        nodes = {variable_name(node.var_name): node for node in strategy.node_config}
        index = count()
        plans = tuple(
            _variable_plan(nodes[name], variable, index)
            for name, variable in self._graph_item.trainable_var_op_to_var.items()
        )
        replicas = tuple(_canonical(replica) for replica in strategy.graph_config.replicas)
        return CompiledStrategy(strategy.id, replicas, plans, tuple(strategy.notes))


def _variable_plan(node: strategy_pb2.Strategy.Node, variable: Variable, index: Iterator[int]) -> VariablePlan:
    if not node.partitioner:
        return VariablePlan(variable, _lower(node, 0, index), remark=node.note)
    config = PartitionerConfig(partition_str=node.partitioner)
    sizes = shard_sizes(variable.shape[config.axis], config.num_shards)
    parts = [part if part.WhichOneof("synchronizer") else node for part in node.part_config] or [
        node
    ] * config.num_shards
    shards = tuple(
        # Where the node speaks for its shards, they go to its destinations in turn.
        Shard(position, sum(sizes[:position]), size, _lower(part, position, index))
        for position, (size, part) in enumerate(zip(sizes, parts, strict=True))
    )
    synchronizers = [shard.synchronizer for shard in shards]
    return VariablePlan(variable, _shared(synchronizers) or synchronizers[0], config.axis, shards, node.note)


def _lower(node: strategy_pb2.Strategy.Node, position: int, index: Iterator[int]) -> Synchronizer:
    number = next(index)
    if node.WhichOneof("synchronizer") == "AllReduceSynchronizer":
        return lower_all_reduce(node.AllReduceSynchronizer, number)
    plan = lower_ps(node.PSSynchronizer)
    return replace(plan, destinations=(_canonical(plan.destinations[position % len(plan.destinations)]),))


def _shared(synchronizers: list[Synchronizer]) -> Synchronizer | None:
    """One synchronizer that says the same as several, with the destinations of all; ``None`` when they differ."""
    apart = [replace(each, destinations=()) if isinstance(each, PSPlan) else each for each in synchronizers]
    if len(set(apart)) > 1:
        return None
    places = tuple(place for each in synchronizers if isinstance(each, PSPlan) for place in each.destinations)
    first = synchronizers[0]
    return replace(first, destinations=places) if isinstance(first, PSPlan) else first


def _canonical(name: str) -> str:
    return DeviceSpec.parse(name).name


def _uneven_note(dimension: int, config: PartitionerConfig) -> str:
    if dimension % config.num_shards == 0:
        return ""
    why = f"axis {config.axis} is prime" if is_prime(dimension) else f"axis {config.axis} has {dimension} entries"
    return f"{why}: split in {config.num_shards} uneven shards"


@dataclass(frozen=True)
class Apart:
    """How many steps replicas may be ahead of the slowest; None for any number."""

    staleness: int | None


def drifting(strategy: CompiledStrategy) -> Apart | None:
    """How far the replicas may drift apart; None where some variable keeps them in step."""
    used = [synchronizer for plan in strategy.variables for _, synchronizer in plan.pieces]
    loose = [each for each in used if is_loose(each)]
    if len(strategy.replicas) < 2 or not loose or len(loose) < len(used):
        return None
    return Apart(min((each.staleness for each in loose if each.sync), default=None))


def is_loose(synchronizer: Synchronizer) -> TypeGuard[PSPlan]:
    """Whether a variable's synchronizer alone would let replicas drift apart."""
    return isinstance(synchronizer, PSPlan) and (not synchronizer.sync or synchronizer.staleness > 0)
