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
from contextlib import suppress
from dataclasses import replace
from typing import cast

import tensorflow as tf

from autodist_core.cluster.chief.cluster import Cluster
from autodist_core.cluster.chief.fleet import Fleet
from autodist_core.cluster.on_node.standby import become_agent_unless_chief
from autodist_core.errors import NodeLostError, StrategyError
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
from autodist_core.strategy.options import replica_devices
from autodist_core.training import choices
from autodist_core.training.devices import absent, local_spec, without_nccl_on_one_card
from autodist_core.training.settings import Settings


def _known(builder: StrategyBuilder, item: GraphItem) -> tuple[object, ...]:
    """What a strategy depends on: variables that the step trains, without their handles in its graph, or all of it."""
    trained = tuple(replace(variable, handle="") for variable in item.trainable_var_op_to_var.values())
    return trained, builder.reads_steps and bool(item.gradients)


class Sessions:
    """Makes sessions under some settings. When a node is left out after a loss, the resource spec changes here."""

    def __init__(
        self, settings: Settings, fleet: Fleet | None = None, check: Callable[[], object] = lambda: None
    ) -> None:
        self.settings, self.check = settings, check
        self.fleet = fleet if fleet is not None else _fleet(settings)
        self._built: list[tuple[ResourceSpec, tuple[object, ...], Strategy]] = []
        """The strategies that the builder has built, one for each set of devices and trainable variables."""
        self.tried = False
        """Whether the builder's candidates were tried."""

    def changed(self, settings: Settings) -> Sessions:
        """The same with other settings: on the same machines, unless the settings about machines are others."""
        moves = settings.of_the_cluster != self.settings.of_the_cluster
        return Sessions(settings, None if moves else self.fleet, self.check)

    def compile_strategy(self, item: GraphItem) -> CompiledStrategy:
        """The strategy for a step on these devices. A note names those that this machine does not have.

        A builder need not be deterministic. So `fit` carries out the strategy that `plan` has shown. A strategy that is
        refused is not stored.

        >>> from autodist_core.step.graph_item import Variable
        >>> from autodist_core.strategy import PS
        >>> class Counted(PS):
        ...     built = 0
        ...     def build(self, graph_item, resource_spec):
        ...         self.built += 1
        ...         return super().build(graph_item, resource_spec)
        >>> sessions = Sessions(Settings(ResourceSpec.local(cpus=2), Counted()))
        >>> item = GraphItem((Variable("w", (3, 2), "float32"),))
        >>> sessions.compile_strategy(item) == sessions.compile_strategy(item), sessions.settings.strategy.built
        (True, 1)
        """
        builder, spec = self.settings.strategy, self.settings.resource_spec
        compiler, step = StrategyCompiler(item, spec), _known(builder, item)
        built = next((each for devices, known, each in self._built if devices is spec and known == step), None)
        if built is not None:
            strategy = compiler.compile(built)
        else:
            with stage("the strategy"):
                built = builder.build(item, spec)
                strategy = compiler.compile(built)
            self._built.append((spec, step, built.copy()))
            choices.keep(builder, item, spec, built)
        if self._has_machines:
            return strategy
        strategy = without_nccl_on_one_card(strategy, spec)
        return replace(strategy, notes=(*strategy.notes, *absent(spec)))

    def decide(self, item: GraphItem, strategy: Strategy) -> None:
        """Take this strategy for a step, in place of what the builder would build."""
        self._built.insert(0, (self.settings.resource_spec, _known(self.settings.strategy, item), strategy))

    def start_machines(self) -> None:
        """Start the cluster if there are several nodes; else raise unless this machine has the devices.

        `check` may refuse the step, once the machines are known.
        """
        if self._has_machines:
            self.fleet.start()
        else:
            spec = local_spec(self.settings.resource_spec)
            if spec.ray_agents is not None and not spec.ray_agents.hold:
                spec.ray_agents.start(spec.nodes)
        self.check()

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
            with suppress(StrategyError):  # a strategy that refuses the model says so when the model is trained
                strategy = self.compile_strategy(replace(item, variables=weights))
                if any(plan.gathered for plan in strategy.variables):
                    return self.placement(item, strategy)
        return inference(tuple(replica_devices(self.settings.resource_spec)), self._tasks)

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
