"""StrategyBuilder: the class of everything that makes a Strategy from a GraphItem and a ResourceSpec.

Builders stand at the beginning of planning. The compiler checks the Strategy that a builder returns.
"""

import inspect
from abc import ABC, abstractmethod
from typing import ClassVar, Self

from autodist_core.errors import StrategyError, did_you_mean
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.strategy import Strategy


class StrategyBuilder(ABC):
    """Makes strategies. For a strategy of your own, subclass this class and write :meth:`build`.

    An option that the builder does not have is refused with the names of its options.

    >>> class OnFirstCPU(StrategyBuilder):
    ...     def build(self, graph_item, resource_spec):
    ...         place, _ = resource_spec.cpu_devices[0]
    ...         strategy = Strategy()
    ...         strategy.graph_config.replicas.extend(name for name, _ in resource_spec.replica_devices)
    ...         for name in graph_item.trainable_var_op_to_var:
    ...             node = strategy.node_config.add(var_name=name)
    ...             node.PSSynchronizer.reduction_destination = place
    ...             node.PSSynchronizer.sync = True
    ...         return strategy
    >>> from autodist_core.step.graph_item import Variable
    >>> print(OnFirstCPU().build(GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=1)))
    strategy ... @ 1 replica
      replica localhost:CPU:0
      w : ps(localhost:CPU:0)
    >>> from autodist_core.strategy import AllReduce
    >>> AllReduce(wire_dtyp="bfloat16")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: AllReduce(wire_dtyp='bfloat16'): unknown option. Did you mean 'wire_dtype'?
        Known: chunk_size, all_reduce_spec, compressor, bucket_bytes, wire_dtype, power_sgd_rank, factor_rows.
    """

    reads_steps: ClassVar[bool] = False
    """Whether a strategy depends on more of a captured step than its variables."""

    def __new__(cls, *values: object, **options: object) -> Self:
        """Refuse an option that the builder does not have, and name the options that it has."""
        has_options = cls.__init__ is not object.__init__
        parameters = dict(list(inspect.signature(cls.__init__).parameters.items())[1:]) if has_options else {}
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            for name in (name for name in options if name not in parameters):
                known = f"{did_you_mean(name, parameters)} Known: {', '.join(parameters) or 'none'}."
                raise StrategyError(f"{cls.__name__}({name}={options[name]!r}): unknown option.{known}")
        if values and not has_options:
            raise StrategyError(f"{cls.__name__} takes no arguments. Received: {', '.join(map(repr, values))}.")
        return super().__new__(cls)

    @abstractmethod
    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
