"""A running cluster: where its master is, and word of the first node that is lost."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import MutableMapping
from concurrent.futures import Future, InvalidStateError

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.chief.launch import Launched, launch, serve
from autodist_core.errors import NodeLostError
from autodist_core.resource_spec import ResourceSpec

LOST_AFTER_SECONDS = 60.0
_GLANCE, _BEAT = 0.25, 2.0


class Cluster:
    """Servers on all nodes of a spec, from `start` to `close`."""

    def __init__(self, launched: Launched, job: str, lost_after: float) -> None:
        self.job = job
        """A name that no other run has: TensorFlow servers refuse graphs for devices of another job."""
        self.target = f"grpc://{launched.tasks()[0]}"
        self.addresses = tuple(agent.node.address for agent in launched.agents)
        self.lost: Future[NodeLostError] = Future()
        """Is set to the error when a node is lost, or cancelled when the cluster is closed."""
        self._launched = launched
        self._agents = launched.agents
        self._lost_after = lost_after
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._keep_watch, daemon=True, name="autodist-watch")
        self._watch.start()

    @classmethod
    def start(
        cls, spec: ResourceSpec, lost_after: float = LOST_AFTER_SECONDS, tunnelled: bool = False
    ) -> Cluster:
        """Start agents and servers on all nodes; raises a LaunchError that lists whatever keeps one from it."""
        launched = launch(spec, lost_after, tunnelled)
        job = f"autodist_{secrets.token_hex(8)}"
        try:
            serve(launched, job)
        except BaseException:
            launched.close()
            raise
        go_directly_to(launched.tasks()[0].rpartition(":")[0].strip("[]"))
        return cls(launched, job, lost_after)

    def close(self) -> None:
        """End all agents; those of lost nodes as far as they can be reached."""
        self._closing.set()
        self.lost.cancel()
        self._watch.join()
        self._launched.close(1.0 if self.lost.done() and not self.lost.cancelled() else 5.0)

    def _keep_watch(self) -> None:
        last_beat = before = time.monotonic()
        while not self._closing.wait(_GLANCE):
            now = time.monotonic()
            if now - before > _BEAT + 10 * _GLANCE:
                # This process itself stood still (a laptop's lid, a debugger): nobody else is to blame for it.
                for agent in self._agents:
                    agent.last_heard = max(agent.last_heard, now - self._lost_after / 2)
            before = now
            if now - last_beat > _BEAT:
                last_beat = now
                for agent in self._agents:
                    agent.beat()
            for agent in self._agents:
                why = self._trouble(agent, now)
                if why:
                    with contextlib.suppress(InvalidStateError):  # it is being closed
                        self.lost.set_result(NodeLostError(agent.node.address, why))
                    return

    def _trouble(self, agent: AgentHandle, now: float) -> str:
        if agent.ended:
            return agent.epitaph()
        silence = now - agent.last_heard
        if silence > self._lost_after:
            return f"nothing was heard of it for {silence:.0f} s (it hangs, or the network is down){agent.last_words()}"
        return ""


def go_directly_to(address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let gRPC in this process connect to an address without asking the environment's http_proxy.

    >>> environment = {"http_proxy": "http://proxy:3128", "no_proxy": "localhost"}
    >>> go_directly_to("10.0.0.1", environment)
    >>> environment["no_grpc_proxy"]
    'localhost,10.0.0.1'
    """
    # gRPC reads the first of the two that is there. The user's own entries stay.
    known = environment.get("no_grpc_proxy", environment.get("no_proxy", ""))
    names = [name for name in known.split(",") if name]
    if address not in names:
        environment["no_grpc_proxy"] = ",".join([*names, address])
