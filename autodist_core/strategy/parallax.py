"""Parallax and Default: all-reduce for dense variables, parameter servers for sparse variables.

A GraphItem and a ResourceSpec come in, and a Strategy goes out, as from every builder.
"""

from dataclasses import dataclass, field

from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.options import AllReduceOptions, LoadBalancer, PSOptions, reduction_devices, replica_devices
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import Node


@dataclass(frozen=True)
class Parallax(PSOptions, AllReduceOptions, StrategyBuilder):
    """Synchronizes dense variables as AllReduce does, and sparse variables as PSLoadBalancing does.

    >>> from autodist_core.step.graph_item import Variable
    >>> table = Variable("embed/table", (50, 4), "float32", is_sparse=True)
    >>> item = GraphItem((Variable("dense/kernel", (7, 3), "float32"), table))
    >>> print(Parallax().build(item, ResourceSpec.local(cpus=2)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      dense/kernel : all_reduce(group=0)
      embed/table  : ps(localhost:CPU:0)
    """

    all_reduce_spec: str = field(default="NCCL", kw_only=True)
    compressor: str = field(default="NoneCompressor", kw_only=True)

    def __post_init__(self) -> None:
        AllReduceOptions.__post_init__(self)
        PSOptions.__post_init__(self)

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        balancer = LoadBalancer(reduction_devices(resource_spec))
        nodes = [
            Node(variable.name, self.ps(balancer.spread([variable.byte_size])[0]) if variable.is_sparse
                 else self.all_reduce_whole(index, variable, resource_spec))
            for index, variable in enumerate(graph_item.trainable_var_op_to_var.values())
        ]
        return Strategy.of(replica_devices(resource_spec), nodes)


@dataclass(frozen=True)
class Default(StrategyBuilder):
    """The builder that is used when none is named: Parallax with its defaults, and a note in the plan that says so.

    >>> Default().build(GraphItem(()), ResourceSpec.local(cpus=2)).notes
    ['no strategy was named: all-reduce for dense variables, parameter servers for sparse ones']
    """

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        made = Parallax().build(graph_item, resource_spec)
        return made.noted("no strategy was named: all-reduce for dense variables, parameter servers for sparse ones")
