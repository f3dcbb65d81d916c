"""The strategy of a training: built once, and used by the plan and by the training.

In: a builder, a captured step and a resource spec. Out: a compiled strategy.
"""

from dataclasses import replace

from autodist_core.log import stage
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy import Strategy, StrategyBuilder
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.compiler import StrategyCompiler


class Strategies:
    """The strategies that a builder has built, one for each set of devices and trainable variables.

    A builder need not be deterministic. So `fit` carries out the strategy that `plan` has shown.

    >>> from autodist_core.strategy import PS
    >>> class Counted(PS):
    ...     built = 0
    ...     def build(self, graph_item, resource_spec):
    ...         self.built += 1
    ...         return super().build(graph_item, resource_spec)
    >>> strategies, builder, spec = Strategies(), Counted(), ResourceSpec.local(cpus=2)
    >>> item = GraphItem((Variable("w", (3, 2), "float32"),))
    >>> strategies.compiled(builder, item, spec) == strategies.compiled(builder, item, spec)
    True
    >>> builder.built
    1
    """

    def __init__(self) -> None:
        self._built: list[tuple[ResourceSpec, tuple[object, ...], Strategy]] = []

    def compiled(self, builder: StrategyBuilder, item: GraphItem, spec: ResourceSpec) -> CompiledStrategy:
        """The compiled strategy for a step on these devices. A strategy that is refused is not stored."""
        compiler, step = StrategyCompiler(item, spec), (_trained(item), builder.reads_steps and bool(item.gradients))
        for devices, known, strategy in self._built:
            if devices is spec and known == step:
                return compiler.compile(strategy)
        with stage("the strategy"):
            strategy = builder.build(item, spec)
            compiled = compiler.compile(strategy)
        self._built.append((spec, step, strategy.copy()))
        return compiled


def _trained(item: GraphItem) -> tuple[Variable, ...]:
    """The variables for which a strategy is built: those that the step trains, without their handles in its graph."""
    return tuple(replace(variable, handle="") for variable in item.trainable_var_op_to_var.values())
