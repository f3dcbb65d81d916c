"""What an examination found: of each node, and of each ordered pair of nodes. Frozen; `launch` and `doctor` read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autodist_core.resource_spec import Node

SLOW = 0.5
"""Below this part of the bandwidth that the spec says, a pair is remarked upon."""


@dataclass(frozen=True)
class NodeReport:
    """One node: its agent's description as far as there is one, and all that is wrong with the node itself."""

    node: Node
    login_seconds: float | None = None
    """How long it took until the agent was started; None if it was not."""
    description: Mapping[str, Any] = field(default_factory=dict)
    clock_offset: float | None = None
    """Seconds by which its clock is ahead of the chief's."""
    port: int | None = None
    """Where the others reach it; None if it does not take part so far."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """The way from one node to another, by their addresses."""

    source: str
    target: str
    gbits_wanted: float
    """What the spec says of the slower of the two, in Gbit/s."""
    problem: str = ""
    round_trip: float | None = None
    """Seconds there and back; None if it was not measured."""
    gbits: float | None = None
    """What was measured, in Gbit/s."""
    comes_from: str = ""
    """The address under which the target sees the source, where that is not the spec's."""

    @property
    def slow(self) -> bool:
        """Whether much less was measured than the spec says.

        >>> Pair("10.0.0.1", "10.0.0.2", gbits_wanted=1, gbits=0.4).slow
        True
        """
        return self.gbits is not None and self.gbits < SLOW * self.gbits_wanted


@dataclass(frozen=True)
class Report:
    """All nodes of a spec, the chief first, and the pairs of those that take part."""

    source: str
    """Where the spec came from."""
    nodes: tuple[NodeReport, ...]
    pairs: tuple[Pair, ...] = ()
    ports: tuple[int, ...] = ()
    """The ports that AUTODIST_PORTS leaves for servers; none means any."""

    @property
    def problems(self) -> dict[str, tuple[str, ...]]:
        """What keeps nodes from taking part, by their addresses.

        >>> nodes = tuple(NodeReport(Node(address)) for address in ("10.0.0.1", "10.0.0.2"))
        >>> Report("cluster.yml", nodes, (Pair("10.0.0.2", "10.0.0.1", 1, "cannot reach 10.0.0.1"),)).problems
        {'10.0.0.2': ('cannot reach 10.0.0.1',)}
        """
        found = {report.node.address: list(report.problems) for report in self.nodes}
        for pair in self.pairs:
            found[pair.source] += [pair.problem] if pair.problem else []
        return {address: tuple(problems) for address, problems in found.items() if problems}

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a run can do with, and its user should know."""
        others: dict[tuple[str, str], list[str]] = {}
        for pair in self.pairs:
            if pair.comes_from:
                others.setdefault((pair.source, pair.comes_from), []).append(pair.target)
        found = [
            f"{source} comes to {', '.join(targets)} under another address than the spec's: {address}"
            for (source, address), targets in others.items()
        ]
        return (*found, *self._slow_links())

    def _slow_links(self) -> Iterator[str]:
        """One line for a node all of whose links are slow, and for each other link that is."""
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
