"""PS and PSLoadBalancing: every variable lives in one piece on a CPU device, which runs its update.

A GraphItem and a ResourceSpec come in, and a Strategy goes out, as from every builder.
"""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.options import LoadBalancer, PSOptions, begin, reduction_devices
from autodist_core.strategy.strategy import Strategy

__all__ = ["PS", "PSLoadBalancing"]


@dataclass(frozen=True)
class PS(PSOptions, StrategyBuilder):
    """Puts every variable on the first CPU device.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("w", (6, 4), "float32"), Variable("b", (4,), "float32")))
    >>> print(PS(staleness=2).build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      w : ps(localhost:CPU:0, staleness=2)
      b : ps(localhost:CPU:0, staleness=2)
    >>> PS(staleness=3, sync=False)
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: PS(staleness=3, sync=False): staleness bounds a synchronous run; set sync=True
        or staleness=0.
    """

    def __post_init__(self) -> None:
        self.check_ps("PS")

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        strategy = begin(resource_spec)
        place = reduction_devices(resource_spec)[0]
        for name in graph_item.trainable_var_op_to_var:
            self.write_ps(strategy.node_config.add(var_name=name), place)
        return strategy


@dataclass(frozen=True)
class PSLoadBalancing(PSOptions, StrategyBuilder):
    """Puts each variable, in graph order, on the CPU device that holds the fewest bytes so far.

    >>> from autodist_core.step.graph_item import Variable
    >>> item = GraphItem((Variable("w", (6, 4), "float32"), Variable("b", (4,), "float32")))
    >>> print(PSLoadBalancing().build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      w : ps(localhost:CPU:0)
      b : ps(localhost:CPU:1)
    """

    def __post_init__(self) -> None:
        self.check_ps("PSLoadBalancing")

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        strategy = begin(resource_spec)
        balancer = LoadBalancer(reduction_devices(resource_spec))
        for variable in graph_item.trainable_var_op_to_var.values():
            self.write_ps(strategy.node_config.add(var_name=variable.name), balancer.place(variable.byte_size))
        return strategy
