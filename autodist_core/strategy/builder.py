"""StrategyBuilder: makes a Strategy from a GraphItem and a ResourceSpec.

Subclass it to write a strategy of your own.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Self

from autodist_core.errors import StrategyError, did_you_mean
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.strategy import Strategy

__all__ = ["StrategyBuilder"]


class StrategyBuilder(ABC):
    """Makes a strategy. Subclass it and write :meth:`build` for one of your own.

    >>> from autodist_core.strategy import AllReduce
    >>> AllReduce(wire_dtyp="bfloat16")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: AllReduce(wire_dtyp='bfloat16'): unknown option. Did you mean 'wire_dtype'?
        Known: chunk_size, all_reduce_spec, compressor, bucket_bytes, wire_dtype, power_sgd_rank.
    """

    def __new__(cls, *values: object, **options: object) -> Self:
        """Refuse an option that the builder does not have, by the names of those that it has."""
        own = cls.__init__ is not object.__init__
        parameters = dict(list(inspect.signature(cls.__init__).parameters.items())[1:]) if own else {}
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            for name in (name for name in options if name not in parameters):
                known = f"{did_you_mean(name, parameters)} Known: {', '.join(parameters) or 'none'}."
                raise StrategyError(f"{cls.__name__}({name}={options[name]!r}): unknown option.{known}")
        if values and not own:
            raise StrategyError(f"{cls.__name__} takes no arguments. Received: {', '.join(map(repr, values))}.")
        return super().__new__(cls)

    @abstractmethod
    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """The strategy for this model on these machines."""
