"""The examination of all nodes of a resource spec, before anything runs on them.

In four stages it starts an agent on each node, lets each agent describe its node, lets each agent listen on a port, and
lets each agent try to reach all others. A node with a problem takes no part in the later stages, and the other nodes go
on, so that one examination finds all problems. In: a ResourceSpec. Out: a report, and the agents, which still run.
"""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autodist_core.cluster.agents.agent_handle import DESCRIBED, AgentHandle, start_agent
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.in_parallel import ask_in_parallel, end_agents, run_in_parallel
from autodist_core.cluster.agents.tunnels import LOOPBACK, tunnels
from autodist_core.cluster.doctor.report import NodeReport, Pair, Report
from autodist_core.cluster.doctor.requirements import unmet_requirements, why_no_description
from autodist_core.cluster.protocol import probes
from autodist_core.cluster.protocol.handshake import job_secret
from autodist_core.cluster.protocol.sockets import is_of_this_machine
from autodist_core.errors import LaunchError, ResourceSpecError, amount
from autodist_core.log import Waiting
from autodist_core.resource_spec import Node, ResourceSpec

KEEPALIVE_SECONDS = 10.0


Examination = tuple[Report, tuple[AgentHandle, ...], str]
"""The report, the agents that run, the chief's first, and the secret of this run, which the agents' listeners ask for.
"""


def examine(
    spec: ResourceSpec, say: Callable[[str], None] = lambda _: None, keepalive: float = KEEPALIVE_SECONDS,
    tunnelled: bool = False,
) -> Examination:
    """Examine all nodes of a resource spec; `say` is called with each line about the progress.

    The caller ends the agents.

    An ssh connection may be silent for `keepalive` seconds. If the run is `tunnelled`, the nodes reach each other
    through ssh and this process.

    >>> from autodist_core.cluster.agents.in_parallel import end_agents
    >>> report, agents, secret = examine(ResourceSpec.local())
    >>> report.problems, len(agents)
    ({}, 1)
    >>> end_agents(agents)
    """
    require_startable(spec)
    examiner = _Examiner(spec, say, keepalive, tunnelled)
    try:
        return examiner.examine()
    except BaseException:
        examiner.abandon()
        raise


class _Examiner:
    """Runs the stages, and adds what they find to the reports of the nodes. Each thread is about one node."""

    def __init__(self, spec: ResourceSpec, say: Callable[[str], None], keepalive: float, tunnelled: bool) -> None:
        self.spec, self.say, self.keepalive, self.tunnelled = spec, say, keepalive, tunnelled
        self.agents: list[AgentHandle] = []
        self.secret = secrets.token_hex(32)
        self._nodes = sorted(spec.nodes, key=lambda node: not node.chief)
        self._port_range, self._deadlines = port_range(), Deadlines.from_environment()
        self._reports = {node.address: NodeReport(node) for node in self._nodes}
        self._pairs: list[Pair] = []
        self._abandoned = False

    def abandon(self) -> None:
        """End all agents, also those that are still being started."""
        self._abandoned = True
        end_agents(list(self.agents))

    def examine(self) -> Examination:
        """Run all stages; each goes on with the agents that answered in the stage before."""
        others = ", ".join(node.address for node in self._nodes[1:])
        self.say(f"starting agents here{f' and on {others}' if others else ''}")
        scheduled = any(node.agent_port is not None for node in self._nodes)
        seconds = max(self._deadlines.connect, self._deadlines.scheduled if scheduled else 0.0)
        waiting = Waiting("start an agent", len(self._nodes), seconds)
        run_in_parallel(self._nodes, self._start, waiting, lambda node: node.address)
        self.agents.sort(key=lambda agent: self._nodes.index(agent.node))
        answering = self._ask_all(self.agents, self._describe, "describe themselves", self._deadlines.answer)
        self._compare(answering)
        listening = self._ask_all(answering, self._listen, "open a port", self._deadlines.answer)
        nodes = amount(len(self._nodes), "node answers", "nodes answer")
        self.say(f"{len(listening)} of {nodes}; do they reach each other?")
        seconds = self._deadlines.reach + self._deadlines.answer
        reached = self._led(listening) if self.tunnelled else self._reached_from_here(listening)
        self._ask_all(reached, lambda agent: self._reach(agent, reached), "reach each other", seconds)
        pairs = sorted(self._pairs, key=lambda pair: list(self._reports).index(pair.source))
        report = Report(self.spec.source, tuple(self._reports.values()), tuple(pairs), tuple(self._port_range))
        return report, tuple(self.agents), self.secret

    def _found(self, node: Node, **found: Any) -> None:
        self._reports[node.address] = replace(self._reports[node.address], **found)

    def _ask_all(
        self, agents: list[AgentHandle], ask: Callable[[AgentHandle], None], doing: str, seconds: float
    ) -> list[AgentHandle]:
        """Call `ask` with all agents in parallel; return the agents that answered, and note why the others did not.

        `doing` says what the agents are asked to do, and `seconds` is how long they may take.
        """
        answers, errors = ask_in_parallel(agents, ask, doing, seconds)
        for agent, error in errors.items():
            self._note(agent.node, error.reason)
        return list(answers)

    def _note(self, node: Node, problem: str) -> None:
        self._found(node, problems=(*self._reports[node.address].problems, problem))
        self.say(f"{node.address}: {problem}")

    def _start(self, node: Node) -> None:
        begin = time.monotonic()
        try:
            process = start_agent(node, self.spec.ssh_group(node), self._deadlines, self.keepalive)
        except OSError as error:  # also a LaunchError
            limits = f"this machine starts no ssh or agent ({error.strerror}): raise its limits, 'ulimit -n' and '-u'"
            self._note(node, getattr(error, "reason", limits))
            return
        self._found(node, login_seconds=time.monotonic() - begin)
        agent = AgentHandle(node, process)
        # In this order: `abandon`, which goes the other way round, ends the agent if this does not.
        self.agents.append(agent)
        if self._abandoned:
            end_agents([agent])

    def _describe(self, agent: AgentHandle) -> None:
        try:
            agent.description = DESCRIBED[agent.node.address] = agent.ask("describe", self._deadlines.answer)
        except LaunchError as error:
            raise LaunchError(error.host, why_no_description(agent) or error.reason) from None

    def _compare(self, agents: list[AgentHandle]) -> None:
        chief = next((agent.description for agent in agents if agent.node.chief), {})
        for agent in agents:
            self._found(agent.node, description=agent.description, clock_offset=agent.clock_offset)
            for problem in unmet_requirements(agent.node, agent.description, chief, agent.clock_offset):
                self._note(agent.node, problem)

    def _listen(self, agent: AgentHandle) -> None:
        answer = agent.ask("listen", self._deadlines.answer, secret=self.secret, ports=self._port_range)
        self._found(agent.node, port=int(answer["port"]))

    def _reach(self, agent: AgentHandle, agents: list[AgentHandle]) -> None:
        """Let one agent try to reach all agents, itself included, and note each pair."""
        direct = ((peer.node.address, self._reports[peer.node.address].port or 0) for peer in agents)
        peers, seconds = self._reports[agent.node.address].reaches or tuple(direct), self._deadlines.reach
        self._found(agent.node, reaches=peers)
        answer = agent.ask("reach", seconds + self._deadlines.answer, secret=self.secret, peers=peers, seconds=seconds)
        for peer, (host, port), problem in zip(agents, peers, answer["problems"], strict=True):
            text = f"cannot reach {host} on port {port}: {problem}" if problem else ""
            if problem and self.tunnelled:
                text = (
                    f"its tunnel to {peer.node.address} does not work: {problem.removesuffix(f'. {probes.REMEDY}')}. "
                    "The ssh servers of both must let ports be forwarded: 'AllowTcpForwarding yes', no 'PermitOpen'"
                )
            if peer is not agent:
                gbits = min(agent.node.network_bandwidth, peer.node.network_bandwidth)
                self._pairs.append(Pair(agent.node.address, peer.node.address, gbits, text))
                if text:
                    self.say(f"{agent.node.address}: {text}")
            elif text:
                self._note(agent.node, text)

    def _led(self, agents: list[AgentHandle]) -> list[AgentHandle]:
        """The agents, with tunnels between them; none if a node has a problem, which keeps the run from starting."""
        if any(report.problems for report in self._reports.values()):
            return []
        ports = [self._reports[agent.node.address].port or 0 for agent in agents]
        for agent, entrances in zip(agents, tunnels(agents, ports), strict=True):
            self._found(agent.node, reaches=tuple((LOOPBACK, port) for port in entrances))
        return agents

    def _reached_from_here(self, agents: list[AgentHandle]) -> list[AgentHandle]:
        """The agents without the chief's own, if this process does not reach that one, as the session must."""
        for agent in agents:
            if agent.node.chief:
                address, port = agent.node.address, self._reports[agent.node.address].port
                (problem,) = probes.reach(self.secret, [(address, port or 0)], self._deadlines.reach)
                if problem:
                    self._note(agent.node, (
                        f"this program cannot reach its own agent at port {port}: {problem}"
                        if is_of_this_machine(address) else
                        "'chief: true' is on it, and it is no address of this machine, where your program runs. Write "
                        "the address of this machine, or start the program there"
                    ))
                    return [other for other in agents if other is not agent]
        return agents


def require_startable(spec: ResourceSpec) -> None:
    """Raise unless this program can start the agents of a resource spec, as far as this machine alone can tell.

    A front asks before its loop begins, and the examination asks again.

    >>> os.environ["AUTODIST_PORTS"] = "abc"
    >>> require_startable(ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]}))
    Traceback (most recent call last):
    autodist_core.errors.LaunchError: AUTODIST_PORTS='abc' is not a range of ports such as '20000-20099'.
    >>> del os.environ["AUTODIST_PORTS"]
    """
    port_range()
    Deadlines.from_environment()
    if any(node.agent_port is not None for node in spec.nodes):
        # A scheduler has said which process is the chief's.
        job_secret()
    elif len(spec.nodes) > 1 and not is_of_this_machine(spec.chief.address):
        here = [node.address for node in spec.nodes if is_of_this_machine(node.address)]
        if here:
            raise ResourceSpecError(
                f"{spec.source}: 'chief: true' is on {spec.chief.address}, and this machine, where your program runs, "
                f"is {' and '.join(here)}. Move 'chief: true' there, or start the program on {spec.chief.address}."
            )


def port_range() -> list[int]:
    """The ports that AUTODIST_PORTS="first-last" allows for servers; empty if any port is allowed.

    >>> os.environ["AUTODIST_PORTS"] = "20000-20002"
    >>> port_range()
    [20000, 20001, 20002]
    >>> del os.environ["AUTODIST_PORTS"]
    """
    text = os.environ.get("AUTODIST_PORTS", "")
    if not text:
        return []
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and 0 < int(first) <= int(last or first) < 65536):
        raise LaunchError("", f"AUTODIST_PORTS={text!r} is not a range of ports such as '20000-20099'.")
    return list(range(int(first), int(last or first) + 1))
