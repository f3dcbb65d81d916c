"""Order: each read of a variable waits for the last write before it, and each write for the reads since.

In: every node of the draft that touches a variable, with the time at which the captured graph touches it (the attribute
`_order`). Out: control edges, and `draft.steps`, the nodes to run for one step. For a variable that is read, updated
and read again::

    update/write  waits for  replica0/read
    pull/read     waits for  update/write

The captured control edges hold for the captured graph only. Once compute and update are cut apart, nothing else orders
a read of a mirror before the write of the mirror's next value.

A node in a branch of a conditional that is not taken is dead, and TensorFlow ends every node that waits for it. A node
outside the branch therefore waits for a token instead. The token merges the node with the branch's alternative.
"""

import tensorflow as tf

from autodist_core.errors import KernelError
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.placement.devices import host_of
from autodist_core.step import editor, naming
from autodist_core.step.grouping import by_key
from autodist_core.step.index import accesses


class Order(Kernel):
    """Adds control edges for every variable, and the nodes to run for one step.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "Order", "NoOp")
    'NoOp: 6 -> 7'
    """

    provides = ("steps",)

    def apply(self, draft: Draft) -> None:
        """Add the control edges and the nodes of the step."""
        touches: dict[str, list[tuple[int, bool, str]]] = {}
        handles = {node.name: node.name for node in draft.editor if node.op == "VarHandleOp"}
        for node in draft.editor:
            for touch in accesses(node, handles.get):
                if naming.ORDER not in node.attr:
                    raise KernelError(f"{node.name} ({node.op}) touches {touch.variable} at no stated time.")
                touches.setdefault(touch.variable, []).append((node.attr[naming.ORDER].i, touch.writes, node.name))
        for variable, found in touches.items():
            _order(draft, variable, found)
        # Each machine has one node that waits for all of its targets: the session runs that node only.
        targets = dict.fromkeys(alive(draft.editor, name) for name in draft.targets)
        done = by_key((host_of(draft.editor[name].device), f"^{name}") for name in targets) or {"": []}
        draft.steps += [
            draft.editor.add("NoOp", f"step/{index}", names, host) for index, (host, names) in enumerate(done.items())
        ]


def alive(graph: editor.Editor, name: str, reader: str = "") -> str:
    """Return a node, or the token for which a reader outside the node's branch waits instead.

    >>> graph = editor.Editor()
    >>> _ = graph.add("Placeholder", "finite", dtype=tf.bool), graph.add("NoOp", "write")
    >>> _ = graph.add("Switch", "switch", ["finite", "finite"], T=tf.bool)
    >>> _ = graph.add("Identity", "pivot", ["switch:1"], T=tf.bool)
    >>> graph.mark_branch("write", ["pivot"])
    >>> alive(graph, "write"), alive(graph, "finite")
    ('alive/write', 'finite')
    >>> list(graph["alive/write"].input)
    ['switch', 'alive/write/taken']
    """
    path = naming.branch_of(graph[name])
    around = naming.branch_of(graph[reader]) if reader else ()
    if path == around[: len(path)]:
        return name
    pivot = path[-1]
    token = f"alive/{name}"
    if token not in graph:
        device, (source, *_) = graph[pivot].device, graph[pivot].input
        switch, side = naming.split(source)
        graph.add("Identity", f"{token}/taken", [pivot, f"^{name}"], device, T=tf.bool)
        graph.add("Merge", token, [naming.tensor(switch, 1 - side), f"{token}/taken"], device, T=tf.bool, N=2)
        graph.mark_branch(token, path[:-1])
    return alive(graph, token, reader)


def _order(draft: Draft, variable: str, found: list[tuple[int, bool, str]]) -> None:
    last: tuple[int, str] | None = None
    reads: list[str] = []
    before: dict[str, list[str]] = {}
    for time, writes, name in sorted(found):
        if writes and last and last[0] == time:
            raise KernelError(f"{last[1]} and {name} both write {variable} at one time.")
        write = [last[1]] if last else []
        before[name] = [*reads, *write] if writes else write
        for other in before[name]:
            _wait(draft.editor, name, other, before)
        if writes:
            last, reads = (time, name), []
        else:
            reads.append(name)


def _wait(graph: editor.Editor, name: str, other: str, before: dict[str, list[str]]) -> None:
    """Let a node wait for another one.

    If the other one is in a branch that may not run, let the node also wait for the nodes before the other one.
    """
    found = alive(graph, other, name)
    graph.control(name, found)
    if found != other:
        for earlier in before[other]:
            _wait(graph, name, earlier, before)
