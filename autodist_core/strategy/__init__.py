"""Strategies: where the gradient of each variable is reduced, and where the update of the variable runs.

A builder takes a GraphItem and a ResourceSpec, and returns a Strategy. The compiler, the next stage, checks the
Strategy and freezes it. The nine builders of this package are small frozen values. The fields of a builder are its
options.
For a strategy of your own, write a subclass of :class:`~autodist_core.strategy.base.StrategyBuilder`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from autodist_core.errors import StrategyError, did_you_mean
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.all_reduce import AllReduce, PartitionedAR, RandomAxisPartitionAR
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.parallax import Default, Parallax
from autodist_core.strategy.ps import PS, PartitionedPS, PSLoadBalancing, UnevenPartitionedPS
from autodist_core.strategy.sharded import Sharded
from autodist_core.strategy.strategy import Strategy

__all__ = [
    "BUILDERS", "PS", "AllReduce", "Parallax", "PSLoadBalancing", "PartitionedAR", "PartitionedPS",
    "RandomAxisPartitionAR", "Sharded", "Strategy", "StrategyBuilder", "UnevenPartitionedPS", "default", "resolve",
]  # fmt: skip

BUILDERS: Mapping[str, type[StrategyBuilder]] = MappingProxyType({
    builder.__name__: builder for builder in (
        PS, PSLoadBalancing, PartitionedPS, UnevenPartitionedPS, AllReduce, PartitionedAR, RandomAxisPartitionAR,
        Parallax, Sharded,
    )
})  # fmt: skip
"""The builders by name. Wherever a builder is accepted, its name is accepted too."""


def default() -> StrategyBuilder:
    """Return the builder that is used when none is named: Parallax with its defaults.

    >>> default()
    Default()
    """
    return Default()


def resolve(
    strategy: StrategyBuilder | type[StrategyBuilder] | Strategy | str | None,
    builders: Mapping[str, type[StrategyBuilder]] = BUILDERS,
) -> StrategyBuilder:
    """Return the builder for a user's argument.

    The argument is a builder, the class of a builder, the name of one of ``builders``, a finished strategy, or ``None``
    for the default builder.

    >>> resolve("PS")
    PS(local_proxy_variable=False, sync=True, staleness=0)
    >>> resolve("PartitonedPS")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: unknown strategy 'PartitonedPS'. Did you mean 'PartitionedPS'? Known: PS,
        PSLoadBalancing, PartitionedPS, UnevenPartitionedPS, AllReduce, PartitionedAR, RandomAxisPartitionAR, Parallax,
        Sharded.
    >>> resolve("PS(staleness=2)")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: unknown strategy 'PS(staleness=2)'. A name stands for the defaults: pass
        PS(staleness=2) itself, from autodist_core.strategy, for options. Known: PS, PSLoadBalancing, PartitionedPS,
        UnevenPartitionedPS, AllReduce, PartitionedAR, RandomAxisPartitionAR, Parallax, Sharded.
    """
    if strategy is None:
        return default()
    if isinstance(strategy, StrategyBuilder):
        return strategy
    if isinstance(strategy, Strategy):
        return Finished(strategy.copy())
    if isinstance(strategy, type) and issubclass(strategy, StrategyBuilder):
        return strategy()
    if not isinstance(strategy, str):
        raise StrategyError(
            "strategy takes a StrategyBuilder, the name of one, a Strategy, or None for the default. "
            f"Received: {strategy!r} ({type(strategy).__name__})."
        )
    if strategy not in builders:
        name, bracket, _ = strategy.partition("(")
        if bracket and name in builders:
            hint = f" A name stands for the defaults: pass {strategy} itself, from autodist_core.strategy, for options."
        else:
            hint = did_you_mean(strategy, builders)
        raise StrategyError(f"unknown strategy '{strategy}'.{hint} Known: {', '.join(builders)}.")
    return builders[strategy]()


@dataclass(frozen=True)
class Finished(StrategyBuilder):
    """A builder that returns copies of a strategy that exists already.

    >>> from autodist_core import GraphItem, ResourceSpec
    >>> from autodist_core.step.graph_item import Variable
    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
    >>> made = PS().build(item, spec)
    >>> again = Finished(made).build(item, spec)
    >>> again.id == made.id, again is made
    (True, False)
    """

    strategy: Strategy

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        return self.strategy.copy()
