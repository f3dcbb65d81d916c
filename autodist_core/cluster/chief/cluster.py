"""A running cluster: the address for sessions, and a watch that reports the first node that is lost.

In: a ResourceSpec. Out: `Cluster.target`, to which the session connects, and `Cluster.lost`, a future that holds the
error when a node is lost. A thread watches the agents: an agent that ended, or that was silent for too long, is lost.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import MutableMapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.agents.in_parallel import end_agents
from autodist_core.cluster.chief.launch import Launched, launch, start_servers
from autodist_core.errors import LaunchError, NodeLostError, SessionError
from autodist_core.log import Waiting
from autodist_core.resource_spec import ResourceSpec

LOST_AFTER_SECONDS = 60.0
_GIVE_BACK_SECONDS = 10.0
_LOOK_SECONDS, _HEARTBEAT_SECONDS = 0.25, 2.0
_PATIENCE_SECONDS = 0.5
"""How long `close` waits for the agents after a loss. Those that answer end within milliseconds."""
_SILENT_SECONDS = 5.0
"""After how long without a message a node is said to be awaited. An agent sends a message each second."""


class Cluster:
    """TensorFlow servers on all nodes of a resource spec, from `start` to `close`::

        cluster = Cluster.start(ResourceSpec("cluster.yml"))
        session = tf.compat.v1.Session(cluster.target)
        ...
        cluster.close()
    """

    def __init__(self, launched: Launched, job: str, lost_after: float) -> None:
        self.job = job
        """The random name of this run: TensorFlow servers refuse graphs for devices of another job."""
        self.target = f"grpc://{launched.addresses[0][0]}"
        """The address of the chief's server, for sessions."""
        self.addresses = tuple(agent.node.address for agent in launched.agents)
        """The addresses of the nodes, the chief's first."""
        self.lost: Future[NodeLostError] = Future()
        """Has the error as its result when a node is lost; cancelled when the cluster is closed."""
        self._agents = launched.agents
        self._closing = threading.Event()
        self.sessions: list[Any] = []
        """TensorFlow's sessions that are open. The watch closes them when nobody has the cluster any more."""
        arguments = weakref.ref(self), launched, self.sessions, self._closing, lost_after
        self._watch = threading.Thread(target=_watch_agents, args=arguments, daemon=True, name="autodist-watch")
        self._watch.start()
        _clusters.add(self)

    @classmethod
    def start(cls, spec: ResourceSpec, lost_after: float = LOST_AFTER_SECONDS, tunnelled: bool = False) -> Cluster:
        """Start agents and servers on all nodes; a LaunchError lists every problem of every node.

        A node whose agent is silent for longer than `lost_after` seconds is lost.
        """
        launched = launch(spec, lost_after, tunnelled)
        job = f"autodist_{secrets.token_hex(8)}"
        try:
            start_servers(launched, job)
        except BaseException:
            end_agents(launched.agents)
            raise
        bypass_proxy_for(launched.addresses[0][0].rpartition(":")[0].strip("[]"))
        return cls(launched, job, lost_after)

    def give_back(self, sizes: Sequence[int]) -> None:
        """Let the agent of the chief's machine give back the memory of freed values with these bytes."""
        with contextlib.suppress(LaunchError):  # the watch tells if the node is lost
            self._agents[0].ask("give_back", _GIVE_BACK_SECONDS, sizes=list(sizes))

    def close(self) -> None:
        """End all agents; the agents of lost nodes if these can still be reached."""
        self._closing.set()
        self.lost.cancel()
        self._watch.join()
        if self.lost.done() and not self.lost.cancelled():
            # The error is already as late as `lost_after` allows.
            end_agents(self._agents, 1.0, _PATIENCE_SECONDS)
        else:
            end_agents(self._agents)


_clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()


def abandon(session: Any) -> None:
    """Drop a session of TensorFlow without a message to its servers.

    >>> import tensorflow as tf
    >>> session = tf.compat.v1.Session(graph=tf.Graph())
    >>> abandon(session)
    >>> session._closed
    True
    """
    session._closed, session._session = True, None


def _leave_to_parent() -> None:
    """In a forked process, leave the clusters to the parent: a message from here would disturb the parent's."""
    error = SessionError(
        f"process {os.getpid()} was forked from {os.getppid()}, which trains over machines. Train there, or start this "
        "process by multiprocessing's 'spawn': TensorFlow does not work in a fork."
    )
    for cluster in _clusters:
        cluster._agents = ()
        for session in cluster.sessions:
            abandon(session)
        with contextlib.suppress(InvalidStateError):  # it was lost or closed before
            cluster.lost.set_exception(error)


os.register_at_fork(after_in_child=_leave_to_parent)


def _watch_agents(
    watched: weakref.ref[Cluster], launched: Launched, sessions: list[Any], closing: threading.Event, lost_after: float
) -> None:
    """Tell the cluster which node is lost, until it is closed. When nobody has the cluster any more, end its agents."""
    last_heartbeat = before = time.monotonic()
    waiting = Waiting("answer", len(launched.agents), lost_after, _SILENT_SECONDS)
    while not closing.wait(_LOOK_SECONDS):
        now = time.monotonic()
        if now - before > _HEARTBEAT_SECONDS + 10 * _LOOK_SECONDS:
            # This process itself was suspended (a closed laptop, a debugger) and read no message: allow more time.
            for agent in launched.agents:
                agent.last_heard = max(agent.last_heard, now - lost_after / 2)
        before = now
        if now - last_heartbeat > _HEARTBEAT_SECONDS:
            last_heartbeat = now
            for agent in launched.agents:
                agent.tell("beat")
        silent = [agent for agent in launched.agents if now - agent.last_heard > _SILENT_SECONDS]
        waiting.on([a.node.address for a in silent], min((a.last_heard for a in silent), default=now))
        if (cluster := watched()) is None:
            for session in sessions:  # the close of one whose servers are gone would wait for ever
                session.close()
            end_agents(launched.agents)
            return
        for agent in launched.agents:
            if why := _why_lost(agent, now, lost_after):
                with contextlib.suppress(InvalidStateError):  # the cluster is being closed
                    cluster.lost.set_result(NodeLostError(agent.node.address, why))
                return
        del cluster


def _why_lost(agent: AgentHandle, now: float, lost_after: float) -> str:
    """Why the node of an agent is lost; empty if it is not."""
    if agent.ended:
        return agent.why_it_ended()
    silence = now - agent.last_heard
    if silence > lost_after:
        why = f"no message came from its agent for {silence:.0f} s (the machine hangs, or the network is down)"
        return why + agent.log_tail()
    return ""


def bypass_proxy_for(address: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let gRPC in this process connect to an address directly, also where the environment has an http_proxy.

    >>> environment = {"http_proxy": "http://proxy:3128", "no_proxy": "localhost"}
    >>> bypass_proxy_for("10.0.0.1", environment)
    >>> environment["no_grpc_proxy"]
    'localhost,10.0.0.1'
    """
    # gRPC reads the first of these two variables that is set. The user's own entries stay.
    known = environment.get("no_grpc_proxy", environment.get("no_proxy", ""))
    names = [name for name in known.split(",") if name]
    if address not in names:
        environment["no_grpc_proxy"] = ",".join([*names, address])
