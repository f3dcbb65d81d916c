"""Examine the nodes of a spec: start an agent on each, hear what it says of itself, and see who reaches whom.

No stage stops at the first fault: a node with one stays behind and the others go on, so that the report has everything.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.in_parallel import attempt, end
from autodist_core.cluster.agents.start_agent import start_agent
from autodist_core.cluster.doctor.report import NodeReport, Pair, Report
from autodist_core.cluster.doctor.requirements import unfit, why_silent
from autodist_core.cluster.protocol import probes
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import Node, ResourceSpec

KEEPALIVE_SECONDS = 10.0


@dataclass(frozen=True)
class Examination:
    """The report, and the agents that run, the chief's first; whoever asked for them ends them."""

    report: Report
    agents: tuple[AgentHandle, ...]
    secret: str
    """What the agents' listeners ask for."""


def silent(_: str) -> None:
    """Who hears of the progress where nobody wants to."""


def examine(
    spec: ResourceSpec, say: Callable[[str], None] = silent, keepalive: float = KEEPALIVE_SECONDS,
    tunnelled: bool = False,
) -> Examination:
    """Everything that can be known of a cluster before it runs; `say` hears of the progress.

    A connection that is silent for longer than `keepalive` seconds is given up. Nodes between which there will be
    tunnels need not reach each other.
    """
    examiner = _Examiner(spec, say, keepalive, tunnelled)
    try:
        return examiner.examine()
    except BaseException:
        examiner.give_up()
        raise


def port_range() -> list[int]:
    """The ports that AUTODIST_PORTS="first-last" leaves for servers; empty for any."""
    text = os.environ.get("AUTODIST_PORTS", "")
    if not text:
        return []
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and 0 < int(first) <= int(last or first) < 65536):
        raise LaunchError("", f"AUTODIST_PORTS={text!r} is not a range of ports such as '20000-20099'.")
    return list(range(int(first), int(last or first) + 1))


class _Examiner:
    """Notes what the stages find; frozen into a Report at the end."""

    def __init__(self, spec: ResourceSpec, say: Callable[[str], None], keepalive: float, tunnelled: bool) -> None:
        self.spec, self.say, self.keepalive, self.tunnelled = spec, say, keepalive, tunnelled
        self.agents: list[AgentHandle] = []
        self.secret = secrets.token_hex(32)
        self._nodes = sorted(spec.nodes, key=lambda node: not node.chief)
        self._port_range, self._deadlines = port_range(), Deadlines.from_environment()
        self._problems: dict[str, list[str]] = {node.address: [] for node in self._nodes}
        self._login_seconds: dict[str, float] = {}
        self._ports: dict[str, int] = {}
        self._pairs: list[Pair] = []
        self._given_up = False
        self._lock = threading.Lock()

    def give_up(self) -> None:
        """End the agents, also those that are still on their way."""
        with self._lock:
            self._given_up = True
        end(self.agents)

    def examine(self) -> Examination:
        """All stages; each goes on with the agents that answered in the one before."""
        others = ", ".join(node.address for node in self._nodes[1:])
        self.say(f"starting agents here{f' and on {others}' if others else ''}")
        attempt(self._nodes, self._start)
        self.agents.sort(key=lambda agent: self._nodes.index(agent.node))
        answering = self._asked(self.agents, self._describe)
        self._compare(answering)
        listening = self._asked(answering, self._listen)
        self.say(f"{len(listening)} of {len(self._nodes)} nodes answer; do they reach each other?")
        if not self.tunnelled:
            self._asked(listening, lambda agent: self._reach(agent, listening))
            self._reach_own_agent(listening)
        described = {agent.node.address: agent for agent in answering}
        return Examination(self._report(described), tuple(self.agents), self.secret)

    def _report(self, described: dict[str, AgentHandle]) -> Report:
        nodes = []
        for node in self._nodes:
            agent = described.get(node.address)
            nodes.append(NodeReport(
                node, self._login_seconds.get(node.address), agent.description if agent else {},
                agent.clock_offset if agent else None, self._ports.get(node.address),
                tuple(self._problems[node.address]),
            ))
        order = {node.address: position for position, node in enumerate(self._nodes)}
        pairs = sorted(self._pairs, key=lambda pair: (order[pair.source], order[pair.target]))
        return Report(self.spec.source, tuple(nodes), tuple(pairs), tuple(self._port_range))

    def _asked(self, agents: list[AgentHandle], ask: Callable[[AgentHandle], None]) -> list[AgentHandle]:
        """Those that did it."""
        answered = []
        for agent, error in zip(agents, attempt(agents, ask), strict=True):
            if error is None:
                answered.append(agent)
            else:
                self._note(agent.node, error.reason)
        return answered

    def _note(self, node: Node, problem: str) -> None:
        self._problems[node.address].append(problem)
        self.say(f"{node.address}: {problem}")

    def _start(self, node: Node) -> None:
        begin = time.monotonic()
        try:
            process = start_agent(node, self.spec.ssh_group(node), self._deadlines, self.keepalive)
        except LaunchError as error:
            self._note(node, error.reason)
            return
        self._login_seconds[node.address] = time.monotonic() - begin
        agent = AgentHandle(node, process)
        with self._lock:
            too_late = self._given_up
            if not too_late:
                self.agents.append(agent)
        if too_late:
            end([agent])

    def _describe(self, agent: AgentHandle) -> None:
        try:
            agent.description = agent.ask("describe", self._deadlines.answer)
        except LaunchError as error:
            raise LaunchError(error.host, why_silent(agent) or error.reason) from None

    def _compare(self, agents: list[AgentHandle]) -> None:
        chief = next((agent.description for agent in agents if agent.node.chief), {})
        for agent in agents:
            for problem in unfit(agent.node, agent.description, chief, agent.clock_offset):
                self._note(agent.node, problem)

    def _listen(self, agent: AgentHandle) -> None:
        answer = agent.ask("listen", self._deadlines.answer, secret=self.secret, ports=self._port_range)
        self._ports[agent.node.address] = int(answer["port"])

    def _reach(self, agent: AgentHandle, agents: list[AgentHandle]) -> None:
        """Which of the agents this one reaches, itself included."""
        peers = [[peer.node.address, self._ports[peer.node.address]] for peer in agents]
        seconds = self._deadlines.reach
        answer = agent.ask(
            "reach", seconds + self._deadlines.answer, secret=self.secret, peers=peers, seconds=seconds
        )
        for peer, (host, port), problem in zip(agents, peers, answer["problems"], strict=True):
            text = f"cannot reach {host} on port {port}: {problem}" if problem else ""
            if peer is not agent:
                self._pairs.append(_pair(agent.node, peer.node, text))
                if text:
                    self.say(f"{agent.node.address}: {text}")
            elif text:
                self._note(agent.node, text)

    def _reach_own_agent(self, agents: list[AgentHandle]) -> None:
        """Whether this process reaches the chief's agent, as a session will have to."""
        for chief in (agent.node for agent in agents if agent.node.chief):
            port = self._ports[chief.address]
            (problem,) = probes.reach(self.secret, [(chief.address, port)], self._deadlines.reach)
            if problem:
                what = f"this program cannot reach its own agent at port {port}: {problem}"
                self._note(chief, f"{what} (is {chief.address} an address of this machine?)")


def _pair(source: Node, target: Node, problem: str) -> Pair:
    return Pair(source.address, target.address, min(source.network_bandwidth, target.network_bandwidth), problem)
