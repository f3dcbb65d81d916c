"""The checks of a graph: every input is produced by a node, and there is no cycle.

In: the nodes of an editor, by name. Out: what each of them reads or awaits, or a `KernelError`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autodist_core.errors import KernelError
from autodist_core.step.grouping import by_key
from autodist_core.step.naming import node_of


def sources_of(nodes: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the nodes that each node reads or awaits; raise a KernelError if no node produces some input.

    >>> from tensorflow.core.framework import node_def_pb2
    >>> sources_of({"b": node_def_pb2.NodeDef(name="b", op="NoOp", input=["^a"])})
    Traceback (most recent call last):
    autodist_core.errors.KernelError: the graph has inputs that nothing produces: b (NoOp) reads ^a.
    """
    sources = {name: frozenset(map(node_of, node.input)) for name, node in nodes.items()}
    if not frozenset().union(*sources.values()) <= nodes.keys():
        missing = [
            f"{node.name} ({node.op}) reads {name}"
            for node in nodes.values() for name in node.input if node_of(name) not in nodes
        ]
        raise KernelError("the graph has inputs that nothing produces: " + "; ".join(missing[:8]) + ".")
    return sources


def require_order(sources: Mapping[str, Collection[str]]) -> None:
    """Raise a KernelError if there is a cycle.

    >>> require_order({"a": ["b"], "b": ["a"], "c": []})
    Traceback (most recent call last):
    autodist_core.errors.KernelError: the graph has a cycle through 2 nodes, among them a, b.
    """
    done = set(in_order(sources))
    if len(done) < len(sources):
        stuck = [name for name in sources if name not in done]
        raise KernelError(f"the graph has a cycle through {len(stuck)} nodes, among them {', '.join(stuck[:5])}.")


def in_order(sources: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Return the names of nodes in an order in which the nodes can run.

    >>> [*in_order({"b": ["a"], "a": []})]
    ['a', 'b']
    """
    waiting = {name: len(before) for name, before in sources.items()}
    readers = by_key((source, name) for name, before in sources.items() for source in before)
    ready = [name for name, count in waiting.items() if count == 0]
    for name in ready:
        yield name
        for reader in readers.get(name, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
