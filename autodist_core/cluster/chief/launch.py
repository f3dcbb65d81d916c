"""The start of a run: agents on all nodes, each with a port, and then a TensorFlow server in each agent.

In: a ResourceSpec. Out: a `Launched` value, or one LaunchError that lists every problem of every node. The examination
of ``doctor`` finds the problems before any server is started.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.in_parallel import ask_in_parallel, end_agents
from autodist_core.cluster.doctor.examination import KEEPALIVE_SECONDS, examine
from autodist_core.cluster.doctor.report import not_ready
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import ResourceSpec
from autodist_core.resource_spec.values import bracketed
from autodist_core.seams.table import ONEDNN

T = TypeVar("T")


@dataclass(frozen=True)
class Launched:
    """Agents that run, reach each other, and hold a port each; `start_servers` is the next step.

    >>> Launched((), []).on_each_agent(lambda agent: agent.node.address, "say their names", seconds=1)
    []
    """

    agents: tuple[AgentHandle, ...]
    """All agents, the chief's first."""
    addresses: Sequence[Sequence[str]]
    """For each agent, the addresses, "host:port", at which it reaches the servers of all agents."""

    def on_each_agent(self, action: Callable[[AgentHandle], T], doing: str, seconds: float) -> list[T]:
        """Call `action` with all agents in parallel; one LaunchError lists all agents for which it failed.

        `doing` says what the agents are asked to do, and `seconds` is how long they may take.
        """
        answers, errors = ask_in_parallel(self.agents, action, doing, seconds)
        if errors:
            problems = {agent.node.address: [error.reason] for agent, error in errors.items()}
            raise _launch_error(problems, len(self.agents))
        return list(answers.values())


def launch(spec: ResourceSpec, keepalive: float = KEEPALIVE_SECONDS, tunnelled: bool = False) -> Launched:
    """Start agents on all nodes of a resource spec; a LaunchError lists every problem of every node.

    An ssh connection may be silent for `keepalive` seconds. With `tunnelled`, the nodes reach
    each other through ssh and this process.

    >>> launched = launch(ResourceSpec.local())
    >>> launched.on_each_agent(lambda agent: agent.node.address, "say their names", seconds=1)
    ['localhost']
    >>> end_agents(launched.agents)
    """
    report, agents, _ = examine(spec, keepalive=keepalive, tunnelled=tunnelled)
    if report.problems:
        end_agents(agents)
        raise _launch_error(report.problems, len(report.nodes))
    return Launched(agents, [[f"{bracketed(host)}:{port}" for host, port in node.reaches] for node in report.nodes])


def start_servers(launched: Launched, job: str) -> None:
    """Start a TensorFlow server in every agent; it admits the addresses from which this cluster's nodes were seen."""
    deadlines = Deadlines.from_environment()
    seen = launched.on_each_agent(
        lambda agent: agent.ask("visitors", deadlines.answer)["addresses"], "answer", deadlines.answer
    )

    # The chief's server fuses operations of the graphs for all others: what it uses, they must have.
    onednn = bool(ONEDNN.get()())

    def start(agent: AgentHandle) -> None:
        task = launched.agents.index(agent)
        agent.ask(
            "serve", deadlines.serve, job=job, task=task, tasks=launched.addresses[task],
            cpus=max(agent.node.cpus, default=0) + 1, admitted=seen[task],
            onednn=onednn,
        )

    launched.on_each_agent(start, "start TensorFlow", deadlines.serve)


def _launch_error(problems: Mapping[str, Sequence[str]], nodes: int) -> LaunchError:
    remedy = "Run 'autodist doctor' with the same file for a full report."
    return LaunchError("", f"{not_ready(problems, nodes)}\n{remedy}", hosts=problems)
