"""The diagnosis of a cluster on which nothing is started: an examination, and measurements of all links.

In: a ResourceSpec. Out: a report with the latency and the bandwidth of each ordered pair of nodes. ``autodist doctor``
is its command.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.in_parallel import end_agents, run_in_parallel
from autodist_core.cluster.doctor.examination import examine, no_progress
from autodist_core.cluster.doctor.report import Pair, Report
from autodist_core.cluster.protocol.messages import Message
from autodist_core.cluster.protocol.sockets import ip_addresses
from autodist_core.errors import LaunchError, amount
from autodist_core.resource_spec import ResourceSpec


def diagnose(spec: ResourceSpec, seconds: float = 1.0, say: Callable[[str], None] = no_progress) -> Report:
    """Report what keeps a run from starting on these nodes, and the latency and the bandwidth of their links.

    Each bandwidth is measured for `seconds`; `say` is called with each line about the progress. All agents are ended.

    >>> report = diagnose(ResourceSpec.local())
    >>> report.problems
    {}
    """
    report, agents, secret = examine(spec, say)
    try:
        return _Measurement(report, agents, secret, seconds, say).report()
    finally:
        end_agents(agents)


class _Measurement:
    """Measures the pairs of a report, and makes a report that has the measurements."""

    def __init__(
        self, report: Report, agents: Sequence[AgentHandle], secret: str, seconds: float, say: Callable[[str], None]
    ) -> None:
        self._report, self._secret, self._seconds, self._say = report, secret, seconds, say
        self._agents = {agent.node.address: agent for agent in agents}
        self._ports = {node.node.address: node.port for node in report.nodes if node.port is not None}
        self._pairs = {(pair.source, pair.target): pair for pair in report.pairs}
        self._failures: dict[str, tuple[str, ...]] = {}
        self._answer_seconds = Deadlines.from_environment().answer

    def report(self) -> Report:
        """Measure all pairs; return the report with the measurements, and with a problem for each agent that failed."""
        to_do = [pair for pair in self._report.pairs if not pair.problem]
        if to_do:
            all_rounds = list(rounds(list(self._ports)))
            in_rounds = f"{amount(len(all_rounds), 'round')} of {self._seconds:g} s"
            self._say(f"measuring {amount(len(to_do), 'link')} in {in_rounds}")
            for one_round in all_rounds:
                pairs = [self._pairs[key] for key in one_round if key in self._pairs]
                run_in_parallel([pair for pair in pairs if not pair.problem], self._measure)
        nodes = tuple(
            replace(node, problems=(*node.problems, *self._failures.get(node.node.address, ())))
            for node in self._report.nodes
        )
        return replace(self._report, nodes=nodes, pairs=tuple(self._pairs.values()))

    def _measure(self, pair: Pair) -> None:
        if {pair.source, pair.target} & self._failures.keys():
            return
        key = (pair.source, pair.target)
        peer = [pair.target, self._ports[pair.target]]
        found = self._ask(
            pair.source, "measure", self._seconds + self._answer_seconds, secret=self._secret, peer=peer,
            seconds=self._seconds,
        )
        if "problem" in found:
            text = (
                f"{pair.target} was reached on port {peer[1]}, and not measured: {found['problem']}. If small messages "
                "arrive and large ones do not, the MTU differs on the way"
            )
            self._pairs[key] = replace(pair, problem=text)
            self._say(f"{pair.source}: {text}")
            return
        # No other node visits the target in this round, so its latest visitor is the source.
        visitor = self._ask(pair.target, "visitors", self._answer_seconds)["addresses"][-1]
        self._pairs[key] = replace(
            pair, round_trip=found["round_trip"], gbits=found["bits_per_second"] / 1e9,
            comes_from="" if visitor in ip_addresses(pair.source) else visitor,
        )

    def _ask(self, address: str, order: str, seconds: float, /, **arguments: Any) -> Message:
        try:
            return self._agents[address].ask(order, seconds, **arguments)
        except LaunchError as error:
            self._failures[address] = (error.reason,)
            self._say(f"{address}: {error.reason}")
            raise


def rounds(addresses: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All ordered pairs of addresses, in the smallest number of rounds in which no address is in two pairs of a round.

    >>> for turn in rounds(["a", "b", "c", "d"]): print(*map("".join, turn))
    ad bc
    da cb
    ac db
    ca bd
    ab cd
    ba dc
    """
    # The addresses stand in a circle, and those that face each other are pairs. After each round all but the first move
    # one place on. An empty place makes an odd number even.
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
