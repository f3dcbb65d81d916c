"""The check of a graph that grows: every input is produced by a node, and there is no cycle.

In: the nodes of an editor, and which of them have changed since the last check. Out: nothing, or a `KernelError`.

Missing inputs are looked for often, among the nodes that have changed, and cycles once, in the finished graph.
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
    >>> check.changed("a"), check.changed("b"), check.require_order()
    (None, None, None)
    >>> nodes["a"].input.append("^b")
    >>> check.changed("a"), check.require_order()
    Traceback (most recent call last):
    autodist_core.errors.KernelError: the graph has a cycle through 2 nodes, among them a, b.
    """

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._changed: dict[str, None] = {}
        self._removed: set[str] = set()
        self.sources: dict[str, frozenset[str]] = {}
        """The nodes that each node reads or awaits, as of the last check."""

    def changed(self, name: str) -> None:
        """Note that a node is new, or that its inputs are."""
        self._changed[name] = None

    def removed(self, name: str) -> None:
        """Note that a node is gone."""
        self._removed.add(name)
        self._changed.pop(name, None)
        self.sources.pop(name, None)

    def require_inputs(self) -> None:
        """Raise a KernelError if no node produces some input of a node that has changed since the last call."""
        for name in self._changed:
            self.sources[name] = frozenset(map(node_of, self._nodes[name].input))
            if not self.sources[name] <= self._nodes.keys():
                raise self._missing()
        gone = self._removed - self._nodes.keys()
        if gone and not all(gone.isdisjoint(sources) for sources in self.sources.values()):
            raise self._missing()
        self._changed.clear()
        self._removed.clear()

    def require_order(self) -> None:
        """Raise a KernelError if no node produces some input, or if there is a cycle."""
        self.require_inputs()
        done = set(in_order(self.sources))
        if len(done) < len(self._nodes):
            stuck = [name for name in self._nodes if name not in done]
            raise KernelError(f"the graph has a cycle through {len(stuck)} nodes, among them {', '.join(stuck[:5])}.")

    def _missing(self) -> KernelError:
        missing = [
            f"{node.name} ({node.op}) reads {name}"
            for node in self._nodes.values() for name in node.input if node_of(name) not in self._nodes
        ]
        return KernelError("the graph has inputs that nothing produces: " + "; ".join(missing[:8]) + ".")


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
