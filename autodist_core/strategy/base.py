"""The classes for a strategy of your own: Strategy, StrategyBuilder and StrategyCompiler, and the values of a Strategy.

The modules `strategy`, `builder`, `compiler` and `synchronizers` define them. Subclass StrategyBuilder, and return a
Strategy of nodes.

>>> from autodist_core.strategy.base import Strategy, StrategyBuilder
>>> class Nothing(StrategyBuilder):
...     def build(self, graph_item, resource_spec):
...         return Strategy()
>>> print(Nothing().build(None, None))
strategy ... @ 0 replicas
"""

from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import AllReducePlan, Node, PSPlan

__all__ = ["AllReducePlan", "Node", "PSPlan", "Strategy", "StrategyBuilder", "StrategyCompiler"]
