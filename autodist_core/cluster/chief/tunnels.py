"""Everything through ssh: a port on every node's loopback for every other node, with this process in between.

For networks that are not trusted. What a node sends to another one's port goes through ssh to the chief, which passes
it on through ssh: encrypted, authenticated, and as fast as the chief can encrypt.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.errors import LaunchError

LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 16


class Tunnels:
    """The ways between the nodes of one cluster, from each to each."""

    def __init__(self, agents: Sequence[AgentHandle], ports: Sequence[int]) -> None:
        self._agents = agents
        self._ports = ports
        self._listeners: list[socket.socket] = []
        self._entries: list[list[int]] = []
        """For each node the port of its own at which it finds each node."""
        for agent in agents:
            if agent.node.chief or agent.connection is not None:
                continue
            raise LaunchError(agent.node.address, "tunnels go through ssh, and a scheduler started this agent without")
        try:
            for source, agent in enumerate(agents):
                self._entries.append([
                    ports[target] if target == source else self._entry(agent, target) for target in range(len(agents))
                ])
        except BaseException:
            self.close()
            raise

    def tasks(self, source: int) -> list[str]:
        """Where a node finds all nodes' servers, its own included."""
        return [f"{LOOPBACK}:{port}" for port in self._entries[source]]

    def close(self) -> None:
        """No new connections; those that exist end with the nodes' own."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _entry(self, agent: AgentHandle, target: int) -> int:
        def passed_on(stream: Any) -> None:
            try:
                other = self._to(target)
            except (OSError, LaunchError):
                stream.close()
                return
            for one, two in ((stream, other), (other, stream)):
                threading.Thread(target=_copy, args=(one, two), daemon=True, name="autodist-tunnel").start()

        if agent.connection is not None:
            return agent.connection.listen(passed_on)
        listener = socket.create_server((LOOPBACK, 0))
        self._listeners.append(listener)
        threading.Thread(target=_accept, args=(listener, passed_on), daemon=True, name="autodist-tunnels").start()
        return int(listener.getsockname()[1])

    def _to(self, target: int) -> Any:
        """A stream to a node's server, as one on its own loopback."""
        connection = self._agents[target].connection
        if connection is not None:
            return connection.open(LOOPBACK, self._ports[target])
        return socket.create_connection((LOOPBACK, self._ports[target]), timeout=10)


def _accept(listener: socket.socket, passed_on: Callable[[Any], None]) -> None:
    while True:
        try:
            stream, _ = listener.accept()
        except OSError:
            return
        passed_on(stream)


def _copy(source: Any, target: Any) -> None:
    """Pass on what comes until it ends; a half that ends ends the other half's other half."""
    source.settimeout(None)
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for stream in (source, target):
        with contextlib.suppress(OSError, EOFError):
            stream.close()
