"""The examination of a cluster with nothing to run on it: what `launch` checks, and how fast the nodes' links are."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.in_parallel import attempt, end
from autodist_core.cluster.doctor.examination import examine, silent
from autodist_core.cluster.doctor.report import Pair, Report
from autodist_core.cluster.protocol.messages import Message
from autodist_core.cluster.protocol.sockets import plain_address
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import ResourceSpec


def diagnose(spec: ResourceSpec, seconds: float = 1.0, say: Callable[[str], None] = silent) -> Report:
    """What keeps a run from starting on these nodes, and latency and bandwidth of each pair that reaches each other.

    One bandwidth takes `seconds`; `say` hears of the progress. The agents are ended again::

        report = diagnose(ResourceSpec("cluster.yml"))
        print(report.problems or "all is well")
    """
    found = examine(spec, say)
    try:
        return _Measurement(found.report, found.agents, found.secret, seconds, say).report()
    finally:
        end(found.agents)


class _Measurement:
    """Measures the pairs of a report, and ends up with a report that has it."""

    def __init__(
        self, report: Report, agents: Sequence[AgentHandle], secret: str, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._report, self._secret, self._seconds, self._say = report, secret, seconds, say
        self._agents = {agent.node.address: agent for agent in agents}
        self._ports = {node.node.address: node.port for node in report.nodes if node.port is not None}
        self._pairs = {(pair.source, pair.target): pair for pair in report.pairs}
        self._silent: dict[str, str] = {}
        self._patience = Deadlines.from_environment().answer

    def report(self) -> Report:
        """The report with all measurements, and with those agents' problems who did not answer."""
        to_do = [pair for pair in self._report.pairs if not pair.problem]
        if to_do:
            turns = list(rounds(list(self._ports)))
            self._say(f"measuring {len(to_do)} links in {len(turns)} rounds of {self._seconds:g} s")
            for turn in turns:
                pairs = [self._pairs[way] for way in turn if way in self._pairs]
                attempt([pair for pair in pairs if not pair.problem], self._measure)
        nodes = tuple(
            replace(node, problems=(*node.problems, self._silent[node.node.address]))
            if node.node.address in self._silent else node
            for node in self._report.nodes
        )
        return replace(self._report, nodes=nodes, pairs=tuple(self._pairs.values()))

    def _measure(self, pair: Pair) -> None:
        if {pair.source, pair.target} & self._silent.keys():
            return
        way = (pair.source, pair.target)
        peer = [pair.target, self._ports[pair.target]]
        found = self._ask(
            pair.source, "measure", self._seconds + self._patience, secret=self._secret, peer=peer,
            seconds=self._seconds,
        )
        if "problem" in found:
            text = (
                f"{pair.target} was reached on port {peer[1]}, and not measured: {found['problem']}. If small messages "
                "arrive and large ones do not, the MTU differs on the way"
            )
            self._pairs[way] = replace(pair, problem=text)
            self._say(f"{pair.source}: {text}")
            return
        # In this round nobody else visits the target.
        visitor = self._ask(pair.target, "visitors", self._patience)["addresses"][-1]
        self._pairs[way] = replace(
            pair, round_trip=found["round_trip"], gbits=found["bits_per_second"] / 1e9,
            comes_from="" if visitor in _meanings(pair.source) else visitor,
        )

    def _ask(self, address: str, do: str, patience: float, /, **arguments: Any) -> Message:
        try:
            return self._agents[address].ask(do, patience, **arguments)
        except LaunchError as error:
            self._silent[address] = error.reason
            self._say(f"{address}: {error.reason}")
            raise


def rounds(addresses: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All ordered pairs, in as few rounds as can be without anybody being in two pairs of a round.

    >>> for turn in rounds(["a", "b", "c", "d"]): print(*map("".join, turn))
    ad bc
    da cb
    ac db
    ca bd
    ab cd
    ba dc
    """
    # Of a circle, those who face each other are pairs, and all but the first move on; the empty one makes it even.
    first, *others = [*addresses, *([""] if len(addresses) % 2 else [])]
    for _ in others:
        circle = [first, *others]
        turn = [
            (one, other) for one, other in zip(circle, reversed(circle[len(circle) // 2:]), strict=False)
            if one and other
        ]
        if turn:
            yield turn
            yield [(other, one) for one, other in turn]
        others = [others[-1], *others[:-1]]


def _meanings(address: str) -> set[str]:
    """The addresses that a spec's address stands for, as far as this machine knows.

    >>> _meanings("10.0.0.1")
    {'10.0.0.1'}
    """
    try:
        return {str(ipaddress.ip_address(address))}
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(plain_address(str(entry[4][0]))) for entry in found}
