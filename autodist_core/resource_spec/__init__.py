"""ResourceSpec: the machines of a run and their devices; together with the captured step it is the input of the flow.

In: a YAML file, a dict, a scheduler's description of its cluster, or nothing for this machine. Out: frozen nodes,
devices and ssh groups. A builder chooses among the devices, the compiler checks a strategy against them, and the
cluster starts an agent on every node. In reading order:

- ``values``: devices, nodes and ssh groups.
- ``grammar``: the YAML file, read and checked.
- ``discovery``: the GPUs of this machine, and the cluster that a scheduler describes.
- ``ray_agents``: the machines and the agents that Ray gives.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autodist_core.errors import ResourceSpecError, amount
from autodist_core.resource_spec import discovery, grammar
from autodist_core.resource_spec.ray_agents import RayAgents
from autodist_core.resource_spec.values import DeviceSpec, Node, SSHGroup

__all__ = ["DeviceSpec", "Devices", "Node", "ResourceSpec", "SSHGroup"]

Devices = tuple[tuple[str, DeviceSpec], ...]
"""Pairs of a device's name and the device."""


class ResourceSpec:
    """The machines of a run, from a YAML file or a dict of the same form; without either, this machine.

    >>> nodes = [{"address": "10.0.0.1", "chief": True, "gpus": [0, 1]}, {"address": "10.0.0.2"}]
    >>> spec = ResourceSpec({"nodes": nodes})
    >>> [name for name, device in spec.devices]
    ['10.0.0.1:CPU:0', '10.0.0.1:GPU:0', '10.0.0.1:GPU:1', '10.0.0.2:CPU:0']
    >>> print(spec)
    resource spec: 2 nodes, 2 GPUs, 2 CPUs
      10.0.0.1 (chief): cpus [0], gpus [0, 1], 1 Gbit/s
      10.0.0.2: cpus [0], 1 Gbit/s
    """

    def __init__(self, path: str | os.PathLike[str] | Mapping[str, Any] | None = None) -> None:
        if path is None:
            content: Any = {"nodes": [{"address": "localhost", "gpus": list(discovery.local_gpus())}]}
            source = "this machine"
        elif isinstance(path, Mapping):
            content, source = path, "the resource spec"
        elif isinstance(path, str | os.PathLike):
            content, source = grammar.load(Path(path)), str(path)
        else:
            raise ResourceSpecError(
                f"ResourceSpec takes the path of a YAML file, a dict of the same form, or None for this machine. "
                f"Received: {path!r} ({type(path).__name__})."
            )
        self._source = source
        self._nodes, self._groups = grammar.parse(content, source)

    _own_task: discovery.Task | None = None
    """The scheduler's task that this process is; None if no scheduler describes the cluster."""
    cluster_resolver: Any = None
    """The `tf.distribute` cluster resolver from which the spec was made, if there is one."""
    _is_agent = True
    """Whether this process is the one of its machine that serves as the agent."""
    ray_agents: RayAgents | None = None
    """What starts the agents on machines of a Ray cluster, if the spec is of one."""

    @classmethod
    def local(cls, cpus: int = 2) -> ResourceSpec:
        """This machine as ``cpus`` logical CPU devices, and no GPU: for tests and first steps.

        >>> [name for name, device in ResourceSpec.local(cpus=2).devices]
        ['localhost:CPU:0', 'localhost:CPU:1']
        """
        return cls({"nodes": [{"address": "localhost", "cpus": cpus}]})

    @classmethod
    def from_tf_config(cls, tf_config: str | None = None, *, gpus: int | None = None) -> ResourceSpec:
        """The cluster that the environment variable ``TF_CONFIG``, or the text ``tf_config``, describes.

        ``TF_CONFIG`` does not say how many GPUs a host has: ``gpus`` is this number. Without it, every host that
        computes counts as many GPUs as this machine has. The chief is the task ``chief`` or ``master``, or else the
        first worker. On the other hosts, the scheduler starts an agent: `autodist agent`, or this same script.

        >>> spec = ResourceSpec.from_tf_config('{"cluster": {"worker": ["10.0.0.1:8888", "10.0.0.2:8888"]}}', gpus=0)
        >>> print(spec)
        resource spec: 2 nodes, 0 GPUs, 2 CPUs
          10.0.0.1 (chief): cpus [0], 1 Gbit/s
          10.0.0.2: cpus [0], 1 Gbit/s
        """
        cluster, task = discovery.tf_config_content(tf_config)
        return cls._from_cluster(cluster, gpus, "TF_CONFIG", task)

    @classmethod
    def from_cluster_resolver(cls, resolver: Any, *, gpus: int | None = None) -> ResourceSpec:
        """The cluster that a ``tf.distribute`` cluster resolver knows; ``gpus`` as in :meth:`from_tf_config`.

        >>> import tensorflow as tf
        >>> cluster = tf.train.ClusterSpec({"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]})
        >>> resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=0)
        >>> [node.address for node in ResourceSpec.from_cluster_resolver(resolver, gpus=0).nodes]
        ['10.0.0.1', '10.0.0.2']
        """
        source = type(resolver).__name__
        try:
            cluster = resolver.cluster_spec().as_dict()
        except AttributeError:
            raise ResourceSpecError(
                "from_cluster_resolver takes a tf.distribute.cluster_resolver.ClusterResolver that knows its cluster. "
                f"Received: {resolver!r}."
            ) from None
        task = {"type": getattr(resolver, "task_type", None), "index": getattr(resolver, "task_id", None)}
        spec = cls._from_cluster(cluster, gpus, source, discovery.own_task(task))
        spec.cluster_resolver = resolver
        return spec

    @classmethod
    def from_ray(cls, nodes: int, *, cpus: int = 1, gpus: int = 0, seconds: float = 60.0) -> ResourceSpec:
        """Machines of the Ray cluster to which this program is connected, each with ``cpus`` CPUs and ``gpus`` GPUs.

        The first one is this program's machine. A placement group reserves them, and the agents are actors in it. They
        end with `DistributedModel.close`, and with the program. Ray has ``seconds`` to give the machines.

        >>> ResourceSpec.from_ray(nodes=2)
        Traceback (most recent call last):
        autodist_core.errors.ResourceSpecError: ...
        """
        for name, value, least in (("nodes", nodes, 1), ("cpus", cpus, 1), ("gpus", gpus, 0)):
            if type(value) is not int or value < least:
                raise ResourceSpecError(
                    f"ResourceSpec.from_ray({name}={value!r}): expected a whole number, {least} at least. Write, for "
                    "example, from_ray(nodes=2, cpus=4, gpus=1): two machines with 4 CPUs and one GPU each."
                )
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise ResourceSpecError(
                f"ResourceSpec.from_ray(seconds={seconds!r}): expected for how long to wait for Ray: a number of "
                "seconds greater than 0, such as 60."
            )
        machines = [{"address": f"machine-{at}", "chief": at == 0, "cpus": cpus, "gpus": gpus} for at in range(nodes)]
        spec, agents = cls({"nodes": machines}), RayAgents(seconds)
        spec._source, spec.ray_agents, spec._nodes = "the Ray cluster", agents, agents.start(spec._nodes)
        return spec

    @classmethod
    def _from_cluster(
        cls, cluster: Mapping[str, Any], gpus: int | None, source: str, own: tuple[str, int] | None
    ) -> ResourceSpec:
        count = len(discovery.local_gpus()) if gpus is None else gpus
        tasks = discovery.cluster_tasks(cluster, source)
        spec = cls.__new__(cls)
        spec._source = source
        nodes, spec._groups = grammar.parse(discovery.cluster_content(tasks, count), source)
        agents = {task.host: task for task in reversed(tasks)}
        spec._nodes = tuple(replace(node, agent_port=agents[node.address].port) for node in nodes)
        spec._own_task = discovery.find_task(tasks, own, source)
        spec._is_agent = spec._own_task in agents.values()
        return spec

    @property
    def chief_elsewhere(self) -> bool:
        """Whether the scheduler started this process for another task than the chief's.

        >>> cluster = '"cluster": {"worker": ["a:8888", "b:8888"]}'
        >>> ResourceSpec.from_tf_config('{%s, "task": {"type": "worker", "index": 1}}' % cluster).chief_elsewhere
        True
        """
        return self._own_task is not None and (self._own_task.host != self.chief.address or not self._is_agent)

    @property
    def own_port(self) -> int | None:
        """The port at which this process waits for the chief; ``None`` if another process of its machine does so."""
        return self._own_task.port if self._own_task is not None and self._is_agent else None

    @property
    def source(self) -> str:
        """The file, or another source, that the description came from, as errors name it."""
        return self._source

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in the order of the file."""
        return self._nodes

    @property
    def chief(self) -> Node:
        """The node on which the user's program runs."""
        return next(node for node in self._nodes if node.chief)

    @property
    def devices(self) -> Devices:
        """All devices as ``(name, DeviceSpec)``: node by node, CPUs before GPUs."""
        return tuple((device.name, device) for node in self._nodes for device in node.devices)

    @property
    def cpu_devices(self) -> Devices:
        """The CPU devices as ``(name, DeviceSpec)``; reductions run on them.

        >>> [name for name, _ in ResourceSpec.local(cpus=2).cpu_devices]
        ['localhost:CPU:0', 'localhost:CPU:1']
        """
        return tuple(pair for pair in self.devices if pair[1].kind == "CPU")

    @property
    def gpu_devices(self) -> Devices:
        """The GPU devices as ``(name, DeviceSpec)``."""
        return tuple(pair for pair in self.devices if pair[1].kind == "GPU")

    @property
    def node_cpu_devices(self) -> dict[str, Devices]:
        """The CPU devices of each node, by its address.

        >>> [name for name, _ in ResourceSpec.local(cpus=2).node_cpu_devices["localhost"]]
        ['localhost:CPU:0', 'localhost:CPU:1']
        """
        return self._by_node("CPU")

    @property
    def node_gpu_devices(self) -> dict[str, Devices]:
        """The GPU devices of each node, by its address.

        >>> ResourceSpec.local(cpus=2).node_gpu_devices
        {'localhost': ()}
        """
        return self._by_node("GPU")

    def _by_node(self, kind: str) -> dict[str, Devices]:
        return {
            node.address: tuple((device.name, device) for device in node.devices if device.kind == kind)
            for node in self._nodes
        }

    @property
    def replica_devices(self) -> Devices:
        """The devices that hold a replica each: every GPU, and the CPU devices of nodes without GPUs."""
        return tuple(
            (device.name, device)
            for node in self._nodes
            for device in node.devices
            if device.kind == "GPU" or not node.gpus
        )

    @property
    def num_cpus(self) -> int:
        """The number of CPU devices."""
        return len(self.cpu_devices)

    @property
    def num_gpus(self) -> int:
        """The number of GPU devices."""
        return len(self.gpu_devices)

    @property
    def network_bandwidth(self) -> dict[str, float]:
        """The bandwidth of each node in Gbit/s, by its address."""
        return {node.address: node.network_bandwidth for node in self._nodes}

    @property
    def ssh_groups(self) -> dict[str, SSHGroup]:
        """The ssh groups by name; a group that the file has without a name is named ``default``."""
        return {group.name: group for group in self._groups}

    def ssh_group(self, node: Node) -> SSHGroup:
        """The ssh group of ``node``; without one, an empty group: ssh's own configuration has all settings then.

        >>> spec = ResourceSpec.local()
        >>> spec.ssh_group(spec.chief) == SSHGroup()
        True
        """
        return self.ssh_groups[node.ssh_config] if node.ssh_config else SSHGroup()

    def without(self, addresses: Collection[str]) -> ResourceSpec:
        """The same resource spec without the nodes of these addresses.

        >>> nodes = [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]
        >>> ResourceSpec({"nodes": nodes}).without({"10.0.0.2"})
        <ResourceSpec of the resource spec: 10.0.0.1>
        """
        fewer = copy.copy(self)
        fewer._nodes = tuple(node for node in self._nodes if node.address not in addresses)
        return fewer

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ResourceSpec):
            return NotImplemented
        return (self._nodes, self._groups) == (other._nodes, other._groups)

    def __hash__(self) -> int:
        return hash((self._nodes, self._groups))

    def __repr__(self) -> str:
        return f"<ResourceSpec of {self._source}: {', '.join(node.address for node in self._nodes)}>"

    def __str__(self) -> str:
        counts = [(len(self._nodes), "node"), (self.num_gpus, "GPU"), (self.num_cpus, "CPU")]
        head = ", ".join(amount(count, word) for count, word in counts)
        return "\n".join([f"resource spec: {head}", *(f"  {line}" for line in (*self._nodes, *self._groups))])
