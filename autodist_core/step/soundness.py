"""Require that a graph can run: some node produces each input, and there is no cycle.

In: the nodes to look at, and all nodes of the graph by name. Out: nothing, or a `KernelError`::

    one reads ^two, two reads ^one    the graph has a cycle through 2 nodes, among them one, two.
    one reads ^gone                   the graph has inputs that nothing produces: one (NoOp) reads ^gone.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from autodist_core.errors import KernelError
from autodist_core.step.naming import node_of


def require_sound(nodes: Sequence[Any], known: Container[str]) -> None:
    """Raise a KernelError if no node produces some input of these nodes, or if there is a cycle among them.

    `known` has the names of all nodes of the graph. The nodes that are not looked at must not read these.

    >>> from tensorflow.core.framework import node_def_pb2
    >>> first, second = (node_def_pb2.NodeDef(name=name, op="NoOp") for name in ("first", "second"))
    >>> second.input[:] = ["^first"]
    >>> require_sound([first, second], {"first", "second"})
    """
    sources = {node.name: {node_of(name) for name in node.input} for node in nodes}
    if not all(each in known for found in sources.values() for each in found):
        missing = [
            f"{node.name} ({node.op}) reads {name}"
            for node in nodes for name in node.input if node_of(name) not in known
        ]
        raise KernelError("the graph has inputs that nothing produces: " + "; ".join(missing[:8]) + ".")
    waiting: dict[str, int] = {}
    readers: dict[str, list[str]] = {}
    for name, found in sources.items():
        among = [source for source in found if source in sources]
        waiting[name] = len(among)
        for source in among:
            readers.setdefault(source, []).append(name)
    ready = [name for name, count in waiting.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for reader in readers.get(ready.pop(), ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if done < len(sources):
        stuck = [name for name, count in waiting.items() if count]
        raise KernelError(f"the graph has a cycle through {len(stuck)} nodes, among them {', '.join(stuck[:5])}.")
