"""Strategies: builders decide how each variable of a model is synchronized on given machines.

A builder takes a GraphItem and a ResourceSpec and returns a Strategy; the compiler, the next stage, checks it. The
eight builders are small frozen values whose fields are their options. One of your own subclasses
:class:`~autodist_core.strategy.base.StrategyBuilder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from autodist_core.errors import StrategyError, did_you_mean
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.all_reduce import AllReduce
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.parallax import Default, Parallax
from autodist_core.strategy.partitioned_ar import PartitionedAR, RandomAxisPartitionAR
from autodist_core.strategy.partitioned_ps import PartitionedPS, UnevenPartitionedPS
from autodist_core.strategy.ps import PS, PSLoadBalancing
from autodist_core.strategy.strategy import Strategy

__all__ = [
    "BUILDERS",
    "PS",
    "AllReduce",
    "Parallax",
    "PSLoadBalancing",
    "PartitionedAR",
    "PartitionedPS",
    "RandomAxisPartitionAR",
    "Strategy",
    "StrategyBuilder",
    "UnevenPartitionedPS",
    "default",
    "resolve",
]

BUILDERS: Mapping[str, type[StrategyBuilder]] = MappingProxyType(
    {
        "PS": PS,
        "PSLoadBalancing": PSLoadBalancing,
        "PartitionedPS": PartitionedPS,
        "UnevenPartitionedPS": UnevenPartitionedPS,
        "AllReduce": AllReduce,
        "PartitionedAR": PartitionedAR,
        "RandomAxisPartitionAR": RandomAxisPartitionAR,
        "Parallax": Parallax,
    }
)
"""The builders by the names that are accepted in their place."""


def default() -> StrategyBuilder:
    """The builder for whoever names none: all-reduce for dense variables, parameter servers for sparse ones."""
    return Default()


def resolve(strategy: StrategyBuilder | type[StrategyBuilder] | Strategy | str | None) -> StrategyBuilder:
    """The builder that a user means: a builder, its class, its name, a finished strategy, or ``None`` for the default.

    >>> resolve("PS")
    PS(local_proxy_variable=False, sync=True, staleness=0)
    >>> resolve("PartitonedPS")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: unknown strategy 'PartitonedPS'. Did you mean 'PartitionedPS'? Known: PS,
        PSLoadBalancing, PartitionedPS, UnevenPartitionedPS, AllReduce, PartitionedAR, RandomAxisPartitionAR, Parallax.
    """
    if strategy is None:
        return default()
    if isinstance(strategy, StrategyBuilder):
        return strategy
    if isinstance(strategy, Strategy):
        return _Finished(strategy.copy())
    if isinstance(strategy, type) and issubclass(strategy, StrategyBuilder):
        return strategy()
    if not isinstance(strategy, str):
        raise StrategyError(
            "strategy takes a StrategyBuilder, the name of one, a Strategy, or None for the default. "
            f"Received: {strategy!r} ({type(strategy).__name__})."
        )
    if strategy not in BUILDERS:
        hint = did_you_mean(strategy, BUILDERS)
        raise StrategyError(f"unknown strategy '{strategy}'.{hint} Known: {', '.join(BUILDERS)}.")
    return BUILDERS[strategy]()


@dataclass(frozen=True)
class _Finished(StrategyBuilder):
    """The builder that somebody has already run."""

    strategy: Strategy

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        return self.strategy.copy()
