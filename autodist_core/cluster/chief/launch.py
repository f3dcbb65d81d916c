"""Start the agents and servers of a run on all nodes; everything that is wrong is found before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.in_parallel import attempt, end
from autodist_core.cluster.chief.tunnels import Tunnels
from autodist_core.cluster.doctor.examination import KEEPALIVE_SECONDS, examine
from autodist_core.cluster.protocol.sockets import bracketed
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import ResourceSpec

__all__ = ["Launched", "launch", "serve"]

T = TypeVar("T")


@dataclass(frozen=True)
class Launched:
    """Agents that run and have found each other, each with a port; servers are the next step."""

    agents: tuple[AgentHandle, ...]
    secret: str
    ports: tuple[int, ...]
    tunnels: Tunnels | None = None

    def each(self, action: Callable[[AgentHandle], T]) -> list[T]:
        """Do something with all agents at once; a LaunchError lists all that fail."""
        problems: dict[str, list[str]] = {}
        results: list[T] = []
        for agent, outcome in zip(self.agents, attempt(self.agents, action), strict=True):
            if isinstance(outcome, LaunchError):
                problems[agent.node.address] = [outcome.reason]
            else:
                results.append(outcome)
        if problems:
            raise _refused(problems, len(self.agents))
        return results

    def tasks(self, seen_from: int = 0) -> list[str]:
        """Where each agent's server is, as one of them, and TensorFlow there, has it."""
        if self.tunnels is not None:
            return self.tunnels.tasks(seen_from)
        return [f"{bracketed(a.node.address)}:{port}" for a, port in zip(self.agents, self.ports, strict=True)]

    def close(self, seconds: float = 5.0) -> None:
        """End all agents, each within that time, and the tunnels between them."""
        end(self.agents, seconds)
        if self.tunnels is not None:
            self.tunnels.close()


def launch(spec: ResourceSpec, keepalive: float = KEEPALIVE_SECONDS, tunnelled: bool = False) -> Launched:
    """Agents on all nodes of a spec, the chief's first; a LaunchError says everything that is wrong with them.

    A connection that is silent for longer than `keepalive` seconds is given up. With `tunnelled` the nodes reach each
    other through ssh and this process.
    """
    found = examine(spec, keepalive=keepalive, tunnelled=tunnelled)
    nodes = found.report.nodes
    ports = tuple(node.port for node in nodes if node.port is not None)
    if found.report.problems:
        end(found.agents)
        raise _refused(found.report.problems, len(nodes))
    if not tunnelled:
        return Launched(found.agents, found.secret, ports)
    try:
        return _through_tunnels(Launched(found.agents, found.secret, ports))
    except BaseException:
        end(found.agents)
        raise


def _through_tunnels(launched: Launched) -> Launched:
    """The same, with tunnels that were seen to work."""
    tunnels = Tunnels(launched.agents, launched.ports)
    tunnelled, deadlines = replace(launched, tunnels=tunnels), Deadlines.from_environment()

    def reach(agent: AgentHandle) -> None:
        peers = [task.rsplit(":", 1) for task in tunnels.tasks(launched.agents.index(agent))]
        answer = agent.ask(
            "reach", deadlines.reach + deadlines.answer, secret=launched.secret, peers=peers, seconds=deadlines.reach
        )
        for other, problem in zip(launched.agents, answer["problems"], strict=True):
            if problem:
                raise LaunchError(agent.node.address, f"its tunnel to {other.node.address} does not work: {problem}")

    try:
        tunnelled.each(reach)
    except BaseException:
        tunnels.close()
        raise
    return tunnelled


def serve(launched: Launched, job: str) -> None:
    """Give every agent a TensorFlow server that admits those who were seen to come from this cluster."""
    deadlines = Deadlines.from_environment()
    seen = launched.each(lambda agent: agent.ask("visitors", deadlines.answer)["addresses"])

    def start(agent: AgentHandle) -> None:
        task = launched.agents.index(agent)
        agent.ask(
            "serve", deadlines.serve, job=job, task=task, tasks=launched.tasks(task),
            cpus=max(agent.node.cpus, default=0) + 1, admitted=seen[task],
        )

    launched.each(start)


def _refused(problems: Mapping[str, Sequence[str]], nodes: int) -> LaunchError:
    lines = "".join(f"\n  {host}: {problem.rstrip('.')}." for host, found in problems.items() for problem in found)
    text = f"{nodes - len(problems)} of {nodes} nodes are ready.{lines}\n'autodist doctor' says more of the same file."
    return LaunchError("", text, hosts=problems)
