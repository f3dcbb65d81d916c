"""The report of an examination: one entry for each node, and one for each ordered pair of nodes.

A report is frozen. ``chief.launch`` refuses to start a cluster whose report has problems, and ``autodist doctor``
prints the report.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autodist_core.errors import amount
from autodist_core.resource_spec import Node
from autodist_core.step.grouping import by_key

SLOW = 0.5
"""A pair is slow if its measured bandwidth is below this fraction of the bandwidth in the resource spec."""


@dataclass(frozen=True)
class NodeReport:
    """What was found of one node: its agent's description, if there is one, and the problems of the node itself.

    >>> late = NodeReport(Node("10.0.0.2"), problems=("its clock is +80 s off the chief's",))
    >>> Report("cluster.yml", (NodeReport(Node("10.0.0.1"), port=20000), late)).problems
    {'10.0.0.2': ("its clock is +80 s off the chief's",)}
    """

    node: Node
    login_seconds: float | None = None
    """How long the start of the agent took; None if the agent was not started."""
    description: Mapping[str, Any] = field(default_factory=dict)
    clock_offset: float | None = None
    """Seconds by which the node's clock is ahead of the chief's; None if no heartbeat has come."""
    port: int | None = None
    """The port on which the other nodes reach it; None if its agent does not listen."""
    reaches: tuple[tuple[str, int], ...] = ()
    """The host and the port at which it reaches each node, itself too; empty before that was tested."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """The link from one node, the source, to another one, the target; both are addresses.

    >>> Pair("10.0.0.1", "10.0.0.2", 1, gbits=0.4).slow, Pair("10.0.0.1", "10.0.0.2", 1, gbits=0.9).slow
    (True, False)
    """

    source: str
    target: str
    gbits_wanted: float
    """The bandwidth in Gbit/s that the resource spec has for the slower of the two nodes."""
    problem: str = ""
    round_trip: float | None = None
    """Seconds from the source to the target and back; None if it was not measured."""
    gbits: float | None = None
    """The measured bandwidth in Gbit/s; None if it was not measured."""
    comes_from: str = ""
    """The address from which the target sees the source come, if that is not the address in the resource spec."""

    @property
    def slow(self) -> bool:
        """Whether the measured bandwidth is below half of the bandwidth in the resource spec.

        >>> Pair("10.0.0.1", "10.0.0.2", gbits_wanted=1, gbits=0.4).slow
        True
        """
        return self.gbits is not None and self.gbits < SLOW * self.gbits_wanted


def not_ready(problems: Mapping[str, Sequence[str]], nodes: int) -> str:
    """How many nodes are ready, and one line for each problem.

    >>> print(not_ready({"10.0.0.2": ["its clock is +80 s off the chief's"]}, 2))
    1 of 2 nodes are ready.
      10.0.0.2: its clock is +80 s off the chief's.
    """
    lines = [f"\n  {host}: {problem.rstrip('.')}." for host, found in problems.items() for problem in found]
    return f"{nodes - len(problems)} of {amount(nodes, 'node is', 'nodes are')} ready.{''.join(lines)}"


@dataclass(frozen=True)
class Report:
    """All nodes of a resource spec, the chief first, and the ordered pairs of the nodes whose agents listen."""

    source: str
    """Where the resource spec came from, such as a file name."""
    nodes: tuple[NodeReport, ...]
    pairs: tuple[Pair, ...] = ()
    ports: tuple[int, ...] = ()
    """The ports that AUTODIST_PORTS allows for servers; empty if any port is allowed."""

    @property
    def problems(self) -> dict[str, tuple[str, ...]]:
        """The problems that keep nodes from taking part, by the addresses of the nodes.

        >>> nodes = tuple(NodeReport(Node(address)) for address in ("10.0.0.1", "10.0.0.2"))
        >>> Report("cluster.yml", nodes, (Pair("10.0.0.2", "10.0.0.1", 1, "cannot reach 10.0.0.1"),)).problems
        {'10.0.0.2': ('cannot reach 10.0.0.1',)}
        """
        found = {report.node.address: list(report.problems) for report in self.nodes}
        for pair in self.pairs:
            found[pair.source] += [pair.problem] if pair.problem else []
        return {address: tuple(problems) for address, problems in found.items() if problems}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what does not keep a run from starting, but what its user should know.

        >>> nodes = tuple(NodeReport(Node(address)) for address in ("10.0.0.1", "10.0.0.2"))
        >>> Report("cluster.yml", nodes, (Pair("10.0.0.2", "10.0.0.1", 1, comes_from="10.9.0.2"),)).notes
        ("10.0.0.2 comes to 10.0.0.1 under another address than the spec's: 10.9.0.2",)
        """
        others = by_key(((pair.source, pair.comes_from), pair.target) for pair in self.pairs if pair.comes_from)
        found = [
            f"{source} comes to {', '.join(targets)} under another address than the spec's: {address}"
            for (source, address), targets in others.items()
        ]
        return (*found, *self._slow_links())

    def _slow_links(self) -> Iterator[str]:
        """One sentence for each node whose links are all slow, then one for each other slow link."""
        left = [pair for pair in self.pairs if pair.slow]
        what = "under half of what the spec says (network_bandwidth): look for what slows {}, or correct the spec"
        links = {
            report.node.address: [
                pair for pair in self.pairs
                if report.node.address in (pair.source, pair.target) and pair.gbits is not None
            ]
            for report in self.nodes
        }
        for address, own in sorted(links.items(), key=lambda item: -sum(pair.slow for pair in item[1])):
            if all(pair.slow for pair in own) and sum(pair in left for pair in own) > 1:
                most = max(pair.gbits or 0.0 for pair in own)
                yield f"every link of {address} has {most:.3g} Gbit/s or less, {what.format('that node')}"
                left = [pair for pair in left if pair not in own]
        for pair in left:
            yield (
                f"{pair.source} -> {pair.target} has {pair.gbits:.3g} of {pair.gbits_wanted:g} Gbit/s, "
                f"{what.format('the link')}"
            )
