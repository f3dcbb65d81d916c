"""Make the sessions of a training: its strategy, its machines, and a session on them.

In: the settings, and a captured step. Out: a compiled strategy, a placement, and a `Session`. The front stands before
this module, and `autodist_core.runtime` after it. On one machine a session is a `LocalSession`. Over several
machines it is a `RecoveringSession`, which asks for the machines again when a node is lost.

>>> from autodist_core.resource_spec import ResourceSpec
>>> two = Sessions(Settings(ResourceSpec.local(cpus=2), "PS"))
>>> other = two.changed(replace(two.settings, strategy="AllReduce"))
>>> other.fleet is two.fleet
True
>>> session = two.open(lambda: two.placement_without_training(GraphItem(())))
>>> [replica.name for replica in session.placement.replicas]
['localhost:CPU:0', 'localhost:CPU:1']
>>> session.close()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import tensorflow as tf

from autodist_core.cluster.chief.cluster import Cluster
from autodist_core.cluster.chief.fleet import Fleet
from autodist_core.cluster.on_node.standby import become_agent_unless_chief
from autodist_core.errors import NodeLostError
from autodist_core.kernel import Placement, Tasks, inference, place
from autodist_core.log import stage
from autodist_core.resource_spec import DeviceSpec, ResourceSpec
from autodist_core.runtime.local.session import LocalSession
from autodist_core.runtime.protocol import Session
from autodist_core.runtime.recovery.recovering import RecoveringSession
from autodist_core.runtime.session import DistributedSession
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import Strategy, StrategyBuilder
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_core.training import choices
from autodist_core.training.devices import absent, local_spec, replicas, without_nccl_on_one_card
from autodist_core.training.settings import Settings


class Strategies:
    """The strategies that a builder has built, one for each set of devices and trainable variables.

    A builder need not be deterministic. So `fit` carries out the strategy that `plan` has shown.

    >>> from autodist_core.strategy import PS
    >>> from autodist_core.step.graph_item import Variable
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
        compiler, step = StrategyCompiler(item, spec), _known(builder, item)
        for devices, known, strategy in self._built:
            if devices is spec and known == step:
                return compiler.compile(strategy)
        with stage("the strategy"):
            strategy = builder.build(item, spec)
            compiled = compiler.compile(strategy)
        self._built.append((spec, step, strategy.copy()))
        choices.keep(builder, item, spec, strategy)
        return compiled

    def decide(self, builder: StrategyBuilder, item: GraphItem, spec: ResourceSpec, strategy: Strategy) -> None:
        """Take this strategy for a step, in place of what the builder would build."""
        self._built.insert(0, (spec, _known(builder, item), strategy))


def _known(builder: StrategyBuilder, item: GraphItem) -> tuple[object, ...]:
    """What a strategy depends on: variables that the step trains, without their handles in its graph, or all of it."""
    trained = tuple(replace(variable, handle="") for variable in item.trainable_var_op_to_var.values())
    return trained, builder.reads_steps and bool(item.gradients)


class Sessions:
    """Makes sessions under some settings. When a node is left out after a loss, the resource spec changes here."""

    def __init__(self, settings: Settings, fleet: Fleet | None = None) -> None:
        self.settings = settings
        self.fleet = fleet if fleet is not None else _fleet(settings)
        self.strategies = Strategies()
        self.tried = False
        """Whether the builder's candidates were tried."""

    def changed(self, settings: Settings) -> Sessions:
        """The same with other settings: on the same machines, unless the settings about machines are others."""
        moves = settings.of_the_cluster != self.settings.of_the_cluster
        return Sessions(settings, None if moves else self.fleet)

    def compile_strategy(self, item: GraphItem) -> CompiledStrategy:
        """The strategy for a step on these devices. A note names those that this machine does not have."""
        spec = self.settings.resource_spec
        strategy = self.strategies.compiled(self.settings.strategy, item, spec)
        if self._has_machines:
            return strategy
        strategy = without_nccl_on_one_card(strategy, spec)
        return replace(strategy, notes=(*strategy.notes, *absent(spec)))

    def start_machines(self) -> None:
        """Start the cluster if there are several nodes; else raise unless this machine has the devices."""
        if self._has_machines:
            self.fleet.start()
        else:
            spec = local_spec(self.settings.resource_spec)
            if spec.ray_agents is not None and not spec.ray_agents.hold:
                spec.ray_agents.start(spec.nodes)

    def open(self, placement: Callable[[], Placement]) -> Session:
        """A session on this machine, or one over all nodes, which asks for its placement again after a restart."""
        fleet = self.fleet
        if fleet.cluster is None:
            return LocalSession(placement())
        restart = None if self.settings.on_failure == "raise" else self._restart
        return RecoveringSession(
            lambda: DistributedSession(placement(), cast(Cluster, fleet.cluster)), fleet.restart_servers, restart,
            fleet.note_progress, self.settings.backup_every,
        )

    def placement(self, item: GraphItem, strategy: CompiledStrategy) -> Placement:
        """The placement of a training."""
        return place(item, strategy, self.settings.share_memory, self._tasks)

    def placement_without_training(self, item: GraphItem) -> Placement:
        """The placement of a session that only evaluates and predicts: of a step like this, if weights are gathered."""
        if not self.settings.strategy.reads_steps:
            weights = tuple(replace(each, trainable=each.kind == "model") for each in item.variables)
            strategy = self.compile_strategy(replace(item, variables=weights))
            if any(plan.gathered for plan in strategy.variables):
                return self.placement(item, strategy)
        return inference(replicas(self.settings.resource_spec), self._tasks)

    def _restart(self, error: NodeLostError) -> None:
        self.fleet.restart(error)
        self.settings = replace(self.settings, resource_spec=self.fleet.spec)

    @property
    def _has_machines(self) -> bool:
        """Whether the replicas run in the agents of machines, not in this process."""
        return len(self.settings.resource_spec.nodes) > 1 or self.fleet.cluster is not None

    @property
    def _tasks(self) -> Tasks:
        cluster = self.fleet.cluster
        if cluster is not None:
            return Tasks(cluster.job, cluster.addresses)
        wanted = {DeviceSpec.parse(name).index for name, _ in self.settings.resource_spec.cpu_devices}
        return Tasks(one_cpu=max(wanted, default=0) >= len(tf.config.list_logical_devices("CPU")))


def _fleet(settings: Settings) -> Fleet:
    """The machines that these settings name; a process that is not the chief becomes an agent here."""
    become_agent_unless_chief(settings.resource_spec)
    return Fleet(*settings.of_the_cluster)
