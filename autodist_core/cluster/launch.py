"""Start an agent on every node at once, and find everything that is wrong before anything runs."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from autodist_core.cluster import probes
from autodist_core.cluster.deadlines import Deadlines
from autodist_core.cluster.handle import AgentHandle, Process, child_agent
from autodist_core.cluster.remote import RemoteAgent
from autodist_core.cluster.standing import StandingAgent
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import Node, ResourceSpec, SSHGroup

CLOCK_SECONDS = 60.0
_COMPARED = {"tensorflow": "TensorFlow", "autodist-keras": "autodist-keras"}

T = TypeVar("T")


@dataclass(frozen=True)
class Launched:
    """Agents that run and have found each other, each with a port; servers are the next step."""

    agents: tuple[AgentHandle, ...]
    secret: str
    ports: tuple[int, ...]

    def each(self, action: Callable[[AgentHandle], T]) -> list[T]:
        """Do something with all agents at once; a LaunchError lists all that fail."""
        return _all(self.agents, action)

    @property
    def tasks(self) -> list[str]:
        """Where each agent's server is, as TensorFlow has it."""
        return [f"{bracketed(a.node.address)}:{port}" for a, port in zip(self.agents, self.ports, strict=True)]

    def close(self) -> None:
        """End all agents."""
        end(self.agents)


def launch(spec: ResourceSpec, keepalive: float = 10.0) -> Launched:
    """Agents on all nodes of a spec, the chief's first; a LaunchError says everything that is wrong with them.

    A connection that is silent for longer than `keepalive` seconds is given up.
    """
    deadlines, allowed = Deadlines.from_environment(), port_range()
    nodes = sorted(spec.nodes, key=lambda node: not node.chief)
    agents, problems = _start(nodes, spec, deadlines, keepalive)
    try:
        problems |= _describe(agents, deadlines.answer)
        if problems:
            raise _refused(problems, len(nodes))
        secret = secrets.token_hex(32)
        ports = tuple(
            answer["port"] for answer in _all(
                agents, lambda agent: agent.ask("listen", deadlines.answer, secret=secret, ports=allowed)
            )
        )
        launched = Launched(tuple(agents), secret, ports)
        unreachable = _reach(launched, deadlines)
        if unreachable:
            raise _refused(unreachable, len(nodes))
        return launched
    except BaseException:
        end(agents)
        raise


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


def end(agents: Sequence[AgentHandle], seconds: float = 5.0) -> None:
    """End agents, all at once."""
    for agent in agents:
        agent.ask_to_end()
    if agents:
        with ThreadPoolExecutor(len(agents)) as pool:
            list(pool.map(lambda agent: agent.finish(seconds), agents))


def port_range() -> list[int]:
    """The ports that AUTODIST_PORTS="first-last" leaves for servers; empty for any."""
    text = os.environ.get("AUTODIST_PORTS", "")
    if not text:
        return []
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and 0 < int(first) <= int(last or first) < 65536):
        raise LaunchError("", f"AUTODIST_PORTS={text!r} is not a range of ports such as '20000-20099'.")
    return list(range(int(first), int(last or first) + 1))


def bracketed(address: str) -> str:
    """An address before a colon and a port.

    >>> bracketed("fd00::1"), bracketed("10.0.0.1")
    ('[fd00::1]', '10.0.0.1')
    """
    return f"[{address}]" if ":" in address else address


def _start(
    nodes: Sequence[Node], spec: ResourceSpec, deadlines: Deadlines, keepalive: float
) -> tuple[list[AgentHandle], dict[str, list[str]]]:
    found: list[AgentHandle] = []
    problems: dict[str, list[str]] = {}

    def start(node: Node) -> AgentHandle | LaunchError:
        try:
            return AgentHandle(node, _process(node, spec.ssh_group(node), deadlines, keepalive))
        except LaunchError as error:
            return error

    with ThreadPoolExecutor(len(nodes)) as pool:
        for node, result in zip(nodes, pool.map(start, nodes), strict=True):
            if isinstance(result, AgentHandle):
                found.append(result)
            else:
                problems[node.address] = [result.reason]
    return found, problems


def _process(node: Node, group: SSHGroup, deadlines: Deadlines, keepalive: float) -> Process:
    env = {"TF_CPP_MIN_LOG_LEVEL": "1", **dict(group.shared_envs)}
    if not node.gpus:
        env["CUDA_VISIBLE_DEVICES"] = "-1"
    if node.chief:
        return child_agent(env)
    if node.agent_port is not None:
        return StandingAgent(node.address, node.agent_port, deadlines.standing)
    return RemoteAgent(node, group, env, deadlines.connect, keepalive)


def _describe(agents: Sequence[AgentHandle], seconds: float) -> dict[str, list[str]]:
    problems: dict[str, list[str]] = {}
    began = time.time()

    def describe(agent: AgentHandle) -> LaunchError | None:
        try:
            agent.description = agent.ask("describe", seconds)
        except LaunchError as error:
            return error
        return None

    with ThreadPoolExecutor(len(agents) or 1) as pool:
        for agent, error in zip(agents, pool.map(describe, agents), strict=True):
            if error is not None:
                problems[agent.node.address] = [_missing_package(agent) or error.reason]
    chief = next((agent for agent in agents if agent.node.chief and agent.description), None)
    for agent in agents if chief else ():
        if agent.description:
            wrong = list(_differences(agent, chief.description, began)) if chief else []
            problems |= {agent.node.address: wrong} if wrong else {}
    return problems


def _missing_package(agent: AgentHandle) -> str:
    log = "\n".join(agent.log)
    missing = re.search(r"No module named '?([\w.]+)", log)
    if missing:
        whole = missing[1].startswith("autodist")
        return (
            f"{'autodist-keras' if whole else missing[1]} is not installed for the Python that runs there. Install "
            f"{'it' if whole else 'autodist-keras with its dependencies'} there, or name the environment that has it "
            "by 'python_venv' in the node's ssh group"
        )
    if "not found" in log and "python" in log:
        return "there is no Python: say how to get one by 'python_venv' in the node's ssh group" + agent.last_words()
    return ""


def _differences(agent: AgentHandle, chief: Mapping[str, Any], began: float) -> list[str]:
    """What of an agent's description does not go with the chief's, or with what the spec asks of the node."""
    own, node = agent.description, agent.node
    found = []
    if own["python"].split(".")[:2] != chief["python"].split(".")[:2]:
        found.append(f"Python {own['python']} there, {chief['python']} on the chief: the minor versions must be equal")
    for key, name in _COMPARED.items():
        if own[key] != chief[key]:
            found.append(f"{name} {own[key] or 'is not installed'} there, {chief[key]} on the chief: install the same")
    missing = [f"GPU:{index}" for index in node.gpus if index not in own["gpus"]]
    if missing:
        found.append(f"the spec asks for {', '.join(missing)}, and {len(own['gpus'])} GPUs are there")
    if not began - CLOCK_SECONDS < own["time"] < time.time() + CLOCK_SECONDS:
        found.append(f"its clock is {own['time'] - time.time():+.0f} s off the chief's: let both follow a time server")
    return found


def _reach(launched: Launched, deadlines: Deadlines) -> dict[str, list[str]]:
    """Whether every node reaches every other one, and this process the chief's agent."""
    peers = [[agent.node.address, port] for agent, port in zip(launched.agents, launched.ports, strict=True)]
    answers = launched.each(
        lambda agent: agent.ask(
            "reach", deadlines.reach + deadlines.answer, secret=launched.secret, peers=peers, seconds=deadlines.reach
        )["problems"]
    )
    problems: dict[str, list[str]] = {}
    for agent, found in zip(launched.agents, answers, strict=True):
        wrong = [
            f"cannot reach {host} on port {port}: {problem}"
            for (host, port), problem in zip(peers, found, strict=True) if problem
        ]
        problems |= {agent.node.address: wrong} if wrong else {}
    if not problems:
        host, port = launched.agents[0].node.address, launched.ports[0]
        (wrong_here,) = probes.reach(launched.secret, [(host, port)], deadlines.reach)
        if wrong_here:
            problems[host] = [f"this program cannot reach its own agent at port {port}: {wrong_here}"]
    return problems


def _all(agents: Sequence[AgentHandle], action: Callable[[AgentHandle], T]) -> list[T]:
    problems: dict[str, list[str]] = {}
    results: list[T] = []
    with ThreadPoolExecutor(len(agents) or 1) as pool:
        for agent, future in [(agent, pool.submit(action, agent)) for agent in agents]:
            try:
                results.append(future.result())
            except LaunchError as error:
                problems[agent.node.address] = [error.reason]
    if problems:
        raise _refused(problems, len(agents))
    return results


def _refused(problems: Mapping[str, Sequence[str]], nodes: int) -> LaunchError:
    lines = "".join(f"\n  {host}: {problem.rstrip('.')}." for host, found in problems.items() for problem in found)
    text = f"{nodes - len(problems)} of {nodes} nodes are ready.{lines}\n'autodist doctor' says more of the same file."
    return LaunchError("", text, hosts=problems)
