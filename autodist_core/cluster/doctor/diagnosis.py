"""The diagnosis of a cluster on which nothing is started: an examination, and measurements of all links.

In: a ResourceSpec. Out: a report with the latency and the bandwidth of each ordered pair of nodes. ``autodist doctor``
is its command.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.in_parallel import end_agents, run_in_parallel
from autodist_core.cluster.doctor.examination import examine
from autodist_core.cluster.doctor.report import Pair, Report
from autodist_core.cluster.protocol.sockets import ip_addresses
from autodist_core.errors import LaunchError, amount
from autodist_core.resource_spec import ResourceSpec


def diagnose(spec: ResourceSpec, seconds: float = 1.0, say: Callable[[str], None] = lambda _: None) -> Report:
    """Report what keeps a run from starting on these nodes, and the latency and the bandwidth of their links.

    Each bandwidth is measured for `seconds`; `say` is called with each line about the progress. All agents are ended.

    >>> report = diagnose(ResourceSpec.local())
    >>> report.problems
    {}
    """
    report, agents, secret = examine(spec, say)
    try:
        return _measured(report, {agent.node.address: agent for agent in agents}, secret, seconds, say)
    finally:
        end_agents(agents)


def _measured(
    report: Report, agents: Mapping[str, AgentHandle], secret: str, seconds: float, say: Callable[[str], None]
) -> Report:
    """The report with measurements of all its pairs, and with a problem for each agent that failed."""
    ports = {node.node.address: node.port for node in report.nodes if node.port is not None}
    answer_seconds = Deadlines.from_environment().answer

    def measured(pair: Pair) -> Pair:
        peer = [pair.target, ports[pair.target]]
        found = agents[pair.source].ask("measure", seconds + answer_seconds, secret=secret, peer=peer, seconds=seconds)
        if "problem" in found:
            text = (
                f"{pair.target} was reached on port {peer[1]}, and not measured: {found['problem']}. If small messages "
                "arrive and large ones do not, the MTU differs on the way"
            )
            say(f"{pair.source}: {text}")
            return replace(pair, problem=text)
        # No other node visits the target in this round, so its latest visitor is the source.
        visitor = agents[pair.target].ask("visitors", answer_seconds)["addresses"][-1]
        return replace(
            pair, round_trip=found["round_trip"], gbits=found["bits_per_second"] / 1e9,
            comes_from="" if visitor in ip_addresses(pair.source) else visitor,
        )

    pairs = {(pair.source, pair.target): pair for pair in report.pairs}
    to_do = {key for key, pair in pairs.items() if not pair.problem}
    all_rounds = list(rounds(list(ports))) if to_do else []
    if to_do:
        in_rounds = f"{amount(len(all_rounds), 'round')} of {seconds:g} s"
        say(f"measuring {amount(len(to_do), 'link')} in {in_rounds}")
    failures: dict[str, tuple[str, ...]] = {}
    for one_round in all_rounds:
        present = [pairs[key] for key in one_round if key in to_do and failures.keys().isdisjoint(key)]
        for pair, found in zip(present, run_in_parallel(present, measured), strict=True):
            if isinstance(found, LaunchError):
                failures[found.host] = (found.reason,)
                say(f"{found.host}: {found.reason}")
            else:
                pairs[pair.source, pair.target] = found
    nodes = (replace(node, problems=(*node.problems, *failures.get(node.node.address, ()))) for node in report.nodes)
    return replace(report, nodes=tuple(nodes), pairs=tuple(pairs.values()))


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
