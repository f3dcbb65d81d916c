"""Start the agents and servers of a run on all nodes; everything that is wrong is found before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autodist_core.cluster.deadlines import Deadlines
from autodist_core.cluster.examination import KEEPALIVE_SECONDS, examine, port_range
from autodist_core.cluster.handle import AgentHandle
from autodist_core.cluster.together import attempt, end
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import ResourceSpec

__all__ = ["Launched", "bracketed", "end", "launch", "port_range", "serve"]

T = TypeVar("T")


@dataclass(frozen=True)
class Launched:
    """Agents that run and have found each other, each with a port; servers are the next step."""

    agents: tuple[AgentHandle, ...]
    secret: str
    ports: tuple[int, ...]

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

    @property
    def tasks(self) -> list[str]:
        """Where each agent's server is, as TensorFlow has it."""
        return [f"{bracketed(a.node.address)}:{port}" for a, port in zip(self.agents, self.ports, strict=True)]

    def close(self) -> None:
        """End all agents."""
        end(self.agents)


def launch(spec: ResourceSpec, keepalive: float = KEEPALIVE_SECONDS) -> Launched:
    """Agents on all nodes of a spec, the chief's first; a LaunchError says everything that is wrong with them.

    A connection that is silent for longer than `keepalive` seconds is given up.
    """
    found = examine(spec, keepalive=keepalive)
    nodes = found.report.nodes
    ports = tuple(node.port for node in nodes if node.port is not None)
    if found.report.problems:
        end(found.agents)
        raise _refused(found.report.problems, len(nodes))
    return Launched(found.agents, found.secret, ports)


def serve(launched: Launched, job: str) -> None:
    """Give every agent a TensorFlow server that admits those who were seen to come from this cluster."""
    deadlines = Deadlines.from_environment()
    seen = launched.each(lambda agent: agent.ask("visitors", deadlines.answer)["addresses"])

    def start(agent: AgentHandle) -> None:
        task = launched.agents.index(agent)
        agent.ask(
            "serve", deadlines.serve, job=job, task=task, tasks=launched.tasks,
            cpus=max(agent.node.cpus, default=0) + 1, admitted=seen[task],
        )

    launched.each(start)


def bracketed(address: str) -> str:
    """An address before a colon and a port.

    >>> bracketed("fd00::1"), bracketed("10.0.0.1")
    ('[fd00::1]', '10.0.0.1')
    """
    return f"[{address}]" if ":" in address else address


def _refused(problems: Mapping[str, Sequence[str]], nodes: int) -> LaunchError:
    lines = "".join(f"\n  {host}: {problem.rstrip('.')}." for host, found in problems.items() for problem in found)
    text = f"{nodes - len(problems)} of {nodes} nodes are ready.{lines}\n'autodist doctor' says more of the same file."
    return LaunchError("", text, hosts=problems)
