"""Agents that are actors of Ray, in a placement group with a bundle for each machine.

In: the nodes of a resource spec, in a program that is connected to a Ray cluster. Out: the same nodes, with the address
of each and the port at which its agent waits. Ray is imported here only, and when it is used.
"""

import os
import secrets
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autodist_core.errors import LaunchError, ResourceSpecError, amount
from autodist_core.resource_spec.values import Node

_SECRET, _GPUS = "AUTODIST_SECRET", "CUDA_VISIBLE_DEVICES"
_AGENT = (sys.executable, "-m", "autodist_core", "agent", "--wait", "1000000", "--linger", "1000000", "--port")
"""The command of an agent, without its port. It waits for its chief longer than its actor lives."""
_PINNED, _ANSWER_SECONDS = 0.001, 5.0
"""How much a bundle takes of the resource that one machine only has, to be on it; for how long an actor may think."""


class RayAgents:
    """The placement group and the actors of a resource spec, from `start` to `close`. Ray ends them with the program.

    >>> RayAgents(seconds=60).start(())
    Traceback (most recent call last):
    autodist_core.errors.ResourceSpecError: ...
    """

    def __init__(self, seconds: float) -> None:
        try:
            import ray
        except ImportError:
            raise ResourceSpecError("ResourceSpec.from_ray needs Ray on all machines: pip install ray.") from None
        self._ray, self._seconds = ray, seconds
        self._group: Any = None
        self._actors: list[Any] = []

    @property
    def hold(self) -> bool:
        """Whether machines are reserved."""
        return self._group is not None

    def start(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Start agents on all nodes but the chief, which is the first one; a LaunchError says why that cannot be.

        Agents that run stay. Ray chooses the machine of a node that has no port, and the actor there the port.
        """
        # Without a connection, Ray would start a cluster of its own.
        if not self._ray.is_initialized():
            raise ResourceSpecError("Call ray.init(address='auto') before ResourceSpec.from_ray: Ray is not connected.")
        with suppress(self._ray.exceptions.RayError):
            if self._actors and self._ray.get([each.found.remote() for each in self._actors], timeout=_ANSWER_SECONDS):
                return nodes
        self.close()
        try:
            self._reserve(nodes, self._ray.util.get_node_ip_address())
            found = self._ray.get([each.found.remote() for each in self._actors], timeout=self._seconds)
        except BaseException as error:
            self.close()
            if isinstance(error, self._ray.exceptions.RayError):
                raise LaunchError("", f"Ray could not start agents, which need this package there: {error}") from None
            raise
        if nodes[0].gpus:
            os.environ[_GPUS] = found[0][0]
        return tuple(replace(node, **place) for node, (_, place) in zip(nodes, found, strict=True))

    def close(self) -> None:
        """Give back what was reserved, which ends the actors and their agents."""
        # Python itself may be about to end, and Ray with it.
        with suppress(Exception):
            if self._group is not None and self._ray.is_initialized():
                for actor in self._actors:
                    self._ray.kill(actor)
                self._ray.util.remove_placement_group(self._group)
        self._group, self._actors = None, []

    __del__ = close

    def _reserve(self, nodes: tuple[Node, ...], own: str) -> None:
        ray, each = self._ray, {"CPU": len(nodes[0].cpus), "GPU": len(nodes[0].gpus)}
        chosen = [own, *(node.address for node in nodes[1:] if node.agent_port)]
        known = {node["NodeManagerAddress"]: _said(node["Resources"]) for node in ray.nodes() if node["Alive"]}
        if own not in known:
            raise LaunchError("", (
                f"This program runs on {own}, which is none of the Ray cluster's machines: {known}. Start it on one "
                "of them, by `ray job submit` for example; Ray Client, ray://, does not do that."
            ))
        pins = [{f"node:{address}": _PINNED} for address in chosen] + [{}] * (len(nodes) - len(chosen))
        self._group = ray.util.placement_group([each | pin for pin in pins], strategy="STRICT_SPREAD")
        if not self._group.wait(self._seconds):
            raise LaunchError("", (
                f"Ray did not reserve {amount(len(nodes), 'machine')} with {_said(each)} each, among them "
                f"{', '.join(chosen)}, within {self._seconds:g} s. There are {known}. Free, in all: "
                f"{_said(ray.available_resources())}. Ask for less, or close the model that holds them."
            ))
        secret = os.environ.setdefault(_SECRET, secrets.token_hex(32))
        for index, node in enumerate(nodes):
            place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(self._group, index)
            actor = ray.remote(num_cpus=each["CPU"], num_gpus=each["GPU"], scheduling_strategy=place)(RayAgent)
            self._actors.append(actor.remote(secret, node.chief, node.agent_port or 0))


class RayAgent:
    """An actor of Ray that holds what is reserved on a machine. A child of its process is the agent.

    The chief's agent is a child of the program.
    """

    def __init__(self, secret: str, chief: bool, port: int) -> None:
        with socket.create_server(("", port)) as free:
            self._port = int(free.getsockname()[1])
        self._gpus = os.environ.get(_GPUS) or "-1"
        env = {"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ, _SECRET: secret, _GPUS: self._gpus}
        self._agent = None if chief else subprocess.Popen([*_AGENT, str(self._port)], env=env)

    def found(self) -> tuple[str, dict[str, Any]]:
        """The GPUs that Ray gave, and where the agent waits, as a node says it; an error if the agent has ended."""
        import ray

        assert self._agent is None or self._agent.poll() is None, "its agent has ended; its log may say why"
        return self._gpus, {"address": ray.util.get_node_ip_address(), "agent_port": self._port}


def _said(resources: dict[str, Any]) -> str:
    return " and ".join(amount(f"{resources.get(kind, 0):g}", kind) for kind in ("CPU", "GPU"))
