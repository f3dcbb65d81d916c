"""Tunnels between the nodes, for networks that are not trusted: all traffic goes through ssh and the chief's machine.

Every node gets one port on its own loopback for every other node, an entrance. What a node sends to an entrance goes
through ssh to the chief's machine, and from there through ssh to the other node: encrypted, authenticated, and as fast
as that machine can encrypt. In: agents and their ports. Out: for each node the ports at which it reaches all nodes.
"""

from collections.abc import Sequence

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.errors import LaunchError

LOOPBACK = "127.0.0.1"


def tunnels(agents: Sequence[AgentHandle], ports: Sequence[int]) -> list[list[int]]:
    """Make tunnels between all nodes; return for each node the ports of its loopback at which it reaches all nodes.

    The tunnels exist as long as the ssh connections do.

    >>> from types import SimpleNamespace
    >>> from autodist_core.resource_spec import Node
    >>> chief = SimpleNamespace(node=Node("10.0.0.1", chief=True), connection=None)
    >>> tunnels([chief], [20000])
    [[20000]]
    >>> tunnels([chief, SimpleNamespace(node=Node("10.0.0.2"), connection=None)], [20000, 20000])
    Traceback (most recent call last):
    autodist_core.errors.LaunchError: 10.0.0.2: tunnels go through ssh, and a scheduler started this agent without ssh
    """
    for agent in agents:
        if agent.connection is None and not agent.node.chief:
            raise LaunchError(
                agent.node.address, "tunnels go through ssh, and a scheduler started this agent without ssh"
            )
    here = [
        port if agent.connection is None else agent.connection.lead_there(port)
        for agent, port in zip(agents, ports, strict=True)
    ]
    entrances = [here if agent.connection is None else agent.connection.lead_here(here) for agent in agents]
    for node, port in enumerate(ports):
        entrances[node][node] = port
    return entrances
