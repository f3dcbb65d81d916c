"""StrategyBuilder: the class of everything that makes a Strategy from a GraphItem and a ResourceSpec.

Builders stand at the beginning of planning. The compiler checks the Strategy that a builder returns.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.strategy import Strategy


class StrategyBuilder(ABC):
    """Makes strategies. For a strategy of your own, subclass this class and write :meth:`build`.

    >>> from autodist_core.strategy.base import Node, PSPlan
    >>> class OnFirstCPU(StrategyBuilder):
    ...     def build(self, graph_item, resource_spec):
    ...         place, _ = resource_spec.cpu_devices[0]
    ...         nodes = [Node(name, PSPlan((place,))) for name in graph_item.trainable_var_op_to_var]
    ...         return Strategy.of([name for name, _ in resource_spec.replica_devices], nodes)
    >>> from autodist_core.step.graph_item import Variable
    >>> print(OnFirstCPU().build(GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=1)))
    strategy ... @ 1 replica
      replica localhost:CPU:0
      w : ps(localhost:CPU:0)
    """

    reads_steps: ClassVar[bool] = False
    """Whether a strategy depends on more of a captured step than its variables."""

    @abstractmethod
    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""

    def candidates(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> dict[str, Strategy]:
        """Return strategies by name, of which a `fit` first runs some steps each, to keep the fastest. Here none.

        >>> from autodist_core.strategy import PS
        >>> PS().candidates(GraphItem(()), ResourceSpec.local(cpus=1))
        {}
        """
        return {}
