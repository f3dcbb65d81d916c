"""Divide operations into pieces that can each run as one: no other operation stands between two of a piece.

In: the nodes before each node of a graph, and which nodes may be in a piece. Out: the pieces, in an order in which
they can run. For a lookup of words (B) between dense layers (A, C, D)::

    A -> B -> C -> D      A, C and D may be in a piece      [A], [C, D]

The level of a node is the largest number of ways out of a piece on the way to it. A way that leaves a piece ends at a
higher level, and so never comes back to the piece. Stages divide the nodes of a level further: no node may need the
value of a node of a later stage.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from autodist_core.step.graph_check import in_order


def pieces(
    sources: Mapping[str, Collection[str]], inside: Collection[str], stages: Mapping[str, int] = MappingProxyType({}),
) -> list[list[str]]:
    """Return the pieces, each in an order in which its nodes can run. The module's docstring has an example.

    `sources` has the nodes before each node of the graph, `stages` the numbers of nodes' stages, which are 0 for all
    others.

    >>> graph = {"a": [], "b": ["a"], "c": ["b", "a"], "d": ["c"], "e": ["d"]}
    >>> pieces(graph, {"a", "c", "d", "e"})
    [['a'], ['c', 'd', 'e']]
    >>> pieces(graph, {"a", "c", "d", "e"}, {"e": 1})
    [['a'], ['c', 'd'], ['e']]
    """
    level: dict[str, int] = {}
    found: dict[tuple[int, int], list[str]] = {}
    for name in in_order(sources):
        highest, own = 0, name in inside
        for source in sources[name]:
            there = level[source] + (not own and source in inside)
            if there > highest:
                highest = there
        level[name] = highest
        if own:
            found.setdefault((highest, stages.get(name, 0)), []).append(name)
    return [found[key] for key in sorted(found)]
