"""Tunnels between the nodes, for networks that are not trusted: all traffic goes through ssh and this process.

Every node gets one port on its own loopback for every other node, an entrance. What a node sends to an entrance goes
through ssh to the chief, which passes it on through ssh to the other node: encrypted, authenticated, and as fast as the
chief can encrypt. In: agents and their ports. Out: for each node the addresses at which it reaches all nodes.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.errors import LaunchError

LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 16
_CONNECT_SECONDS = 10.0


class Tunnels:
    """The tunnels from each node of one cluster to each other node; they exist from the start until `close`.

    >>> from types import SimpleNamespace
    >>> from autodist_core.resource_spec import Node
    >>> chief = SimpleNamespace(node=Node("10.0.0.1", chief=True), connection=None)
    >>> tunnels = Tunnels([chief], [20000])
    >>> tunnels.server_addresses(0)
    ['127.0.0.1:20000']
    >>> tunnels.close()
    >>> Tunnels([chief, SimpleNamespace(node=Node("10.0.0.2"), connection=None)], [20000, 20000])
    Traceback (most recent call last):
    autodist_core.errors.LaunchError: 10.0.0.2: tunnels go through ssh, and a scheduler started this agent without ssh
    """

    def __init__(self, agents: Sequence[AgentHandle], ports: Sequence[int]) -> None:
        self._agents = agents
        self._ports = ports
        self._listeners: list[socket.socket] = []
        self._entrances: list[list[int]] = []
        """For each node its own ports at which it reaches each node."""
        for agent in agents:
            if agent.node.chief or agent.connection is not None:
                continue
            raise LaunchError(
                agent.node.address, "tunnels go through ssh, and a scheduler started this agent without ssh"
            )
        try:
            for source, agent in enumerate(agents):
                self._entrances.append([
                    ports[target] if target == source else self._open_entrance(agent, target)
                    for target in range(len(agents))
                ])
        except BaseException:
            self.close()
            raise

    def server_addresses(self, source: int) -> list[str]:
        """The addresses at which one node reaches the servers of all nodes, its own included."""
        return [f"{LOOPBACK}:{port}" for port in self._entrances[source]]

    def close(self) -> None:
        """Accept no new connections; each existing one ends when a node closes its end."""
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _open_entrance(self, agent: AgentHandle, target: int) -> int:
        """Listen on the loopback of an agent's node for connections to the target; return the port."""

        def pass_on(stream: Any) -> None:
            try:
                other = self._connect_to(target)
            except (OSError, LaunchError):
                stream.close()
                return
            for one, two in ((stream, other), (other, stream)):
                threading.Thread(target=_copy, args=(one, two), daemon=True, name="autodist-tunnel").start()

        if agent.connection is not None:
            return agent.connection.listen(pass_on)
        listener = socket.create_server((LOOPBACK, 0))
        self._listeners.append(listener)
        threading.Thread(target=_accept, args=(listener, pass_on), daemon=True, name="autodist-tunnels").start()
        return int(listener.getsockname()[1])

    def _connect_to(self, target: int) -> Any:
        """A stream to the server of a node, which sees it come from its own loopback."""
        connection = self._agents[target].connection
        if connection is not None:
            return connection.open(LOOPBACK, self._ports[target])
        return socket.create_connection((LOOPBACK, self._ports[target]), timeout=_CONNECT_SECONDS)


def _accept(listener: socket.socket, pass_on: Callable[[Any], None]) -> None:
    while True:
        try:
            stream, _ = listener.accept()
        except OSError:
            return
        pass_on(stream)


def _copy(source: Any, target: Any) -> None:
    """Copy bytes from one stream to the other until the first one ends, then close both."""
    source.settimeout(None)
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for stream in (source, target):
        with contextlib.suppress(OSError, EOFError):
            stream.close()
