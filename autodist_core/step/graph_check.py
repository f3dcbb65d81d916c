"""The check of a graph that grows: every input is produced by a node, and there is no cycle.

In: the nodes of an editor, and which of them have changed since the last check. Out: nothing, or a `KernelError`.

Each node has a **rank**, higher than the ranks of the nodes that it reads. A new node mostly reads nodes that were
there before. Then a check compares its rank with theirs, and looks at no other node. If a node was given a later node
to read, all ranks are computed anew, and this finds the cycles.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autodist_core.errors import KernelError
from autodist_core.step.naming import node_of


class GraphCheck:
    """The check of some nodes, by name. Whoever changes them says so.

    >>> from tensorflow.core.framework import node_def_pb2
    >>> nodes = {"a": node_def_pb2.NodeDef(name="a", op="NoOp"), "b": node_def_pb2.NodeDef(name="b", input=["^a"])}
    >>> check = GraphCheck(nodes)
    >>> check.changed("a"), check.changed("b"), check.run()
    (None, None, None)
    >>> nodes["a"].input.append("^b")
    >>> check.changed("a"), check.run()
    Traceback (most recent call last):
    autodist_core.errors.KernelError: the graph has a cycle through 2 nodes, among them a, b.
    """

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._changed: dict[str, None] = {}
        self._removed: set[str] = set()
        self._sources: dict[str, frozenset[str]] = {}
        self._rank: dict[str, int] = {}
        self._next = 0

    def changed(self, name: str) -> None:
        """Note that a node is new, or that its inputs are."""
        self._changed[name] = None

    def removed(self, name: str) -> None:
        """Note that a node is gone."""
        self._removed.add(name)
        self._changed.pop(name, None)
        self._sources.pop(name, None)
        self._rank.pop(name, None)

    def run(self) -> None:
        """Raise a KernelError if no node produces some input, or if there is a cycle."""
        nodes, rank = self._nodes, self._rank
        # What read a node that is gone may read a new node of its name, which has a higher rank.
        in_order = self._removed.isdisjoint(nodes)
        for name in self._changed:
            self._sources[name] = frozenset(map(node_of, nodes[name].input))
            if name not in rank:
                self._next += 1
                rank[name] = self._next
        for name in self._changed:
            own = rank[name]
            for source in self._sources[name]:
                if source not in nodes:
                    raise self._missing()
                in_order = in_order and rank[source] < own
        gone = {name for name in self._removed if name not in nodes}
        if gone and not all(gone.isdisjoint(sources) for sources in self._sources.values()):
            raise self._missing()
        if not in_order:
            self._rank_all()
        self._changed.clear()
        self._removed.clear()

    @property
    def sources(self) -> Mapping[str, frozenset[str]]:
        """The nodes that each node reads or awaits, as of the last check."""
        return self._sources

    def _missing(self) -> KernelError:
        missing = [
            f"{node.name} ({node.op}) reads {name}"
            for node in self._nodes.values() for name in node.input if node_of(name) not in self._nodes
        ]
        return KernelError("the graph has inputs that nothing produces: " + "; ".join(missing[:8]) + ".")

    def _rank_all(self) -> None:
        """Give all nodes ranks; raise a KernelError if there is a cycle."""
        ready = list(in_order({name: self._sources[name] for name in self._nodes}))
        if len(ready) < len(self._nodes):
            done = set(ready)
            stuck = [name for name in self._nodes if name not in done]
            raise KernelError(f"the graph has a cycle through {len(stuck)} nodes, among them {', '.join(stuck[:5])}.")
        self._rank.update((name, number) for number, name in enumerate(ready, 1))
        self._next = len(ready)


def in_order(sources: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Return the names of nodes in an order in which the nodes can run.

    >>> [*in_order({"b": ["a"], "a": []})]
    ['a', 'b']
    """
    waiting = {name: len(before) for name, before in sources.items()}
    readers: dict[str, list[str]] = {}
    for name, before in sources.items():
        for source in before:
            readers.setdefault(source, []).append(name)
    ready = [name for name, count in waiting.items() if count == 0]
    for name in ready:
        yield name
        for reader in readers.get(name, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
