"""The three classes for a strategy of your own: Strategy, StrategyBuilder and StrategyCompiler.

The modules `strategy`, `builder` and `compiler` define them. Subclass StrategyBuilder, and return a Strategy.


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

__all__ = ["Strategy", "StrategyBuilder", "StrategyCompiler"]
