"""Tell the nodes of each machine that stands for others from the nodes that a graph has once.

In: a draft of machines that stand for others. Out: `Roles`: for each node its machine, and its name on any machine. For
a node of the second machine, whose only replica is replica 1::

    update/replica1/step    machine 1    update/local0/step

Nodes of the first machine, of servers and of what joins the replicas' values are there once, however many machines
there are. A node belongs to a machine if its name has the number of the machine's task or of one of its replicas. It
runs there, or on the same server for all machines, as a lookup of rows does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.errors import KernelError
from autodist_core.kernel.alike.kinds import Kind
from autodist_core.kernel.alike.machines import Machine, local, machines_of
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.placement.devices import host_of
from autodist_core.step import naming
from autodist_core.step.editor import Editor

_LOOPS = {"Enter", "Exit", "NextIteration", "LoopCond"}
MARKS = (naming.ORDER, naming.BRANCH)
"""The attributes by which kernels know nodes. TensorFlow gets nodes of functions without them."""


class NotAlikeError(KernelError):
    """The machines of a kind do not do the same. The graph of each replica is then built.

    >>> print(NotAlikeError("replica1/a reads replica2/b."))
    replica1/a reads replica2/b.
    """


class Roles:
    """The machine of each node of a draft, by the number of its task; 0 for a node that the graph has once.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> Roles(example_draft(PS(), before="Update")).of["replica0/matmul"]
    0
    """

    def __init__(self, draft: Draft, kinds: Sequence[Kind] = ()) -> None:
        self.editor: Editor = draft.editor
        self._partner = {one.task: other.task for kind in kinds for one, other in (kind.built, kind.built[::-1])}
        self.machines = machines_of(draft.placement)
        self.hosts = [draft.placement.replicas[machine.first].host for machine in self.machines]
        self.of = {node.name: self._role(node.name) for node in draft.editor}
        self.nodes: dict[int, dict[str, str]] = {machine.task: {} for machine in self.machines[1:]}
        """The nodes of each machine but the first, by their names on any machine."""
        for name, task in self.of.items():
            if task and self.nodes[task].setdefault(self.own(name, task), name) != name:
                raise NotAlikeError(f"machine {task} has two nodes {self.own(name, task)}.")

    def own(self, text: str, task: int) -> str:
        """Return the name on any machine of a node of the machine of a task."""
        return self.machines[task].own(text)

    def _role(self, name: str) -> int:
        return next((machine.task for machine in self.machines[1:] if machine.has(name)), 0)

    def source(self, source: str) -> int:
        """Return the machine of the node that produces a tensor."""
        return self.of[naming.node_of(source)]

    def expanded(
        self, sources: Iterable[str], each: Callable[[Sequence[str]], Sequence[str]]
    ) -> tuple[list[str], int]:
        """Return inputs of a node that is there once, with those of all machines; and how many runs are of all.

        After tensors of the first machine come those of the built machines, in order. `each` returns, for the tensors
        of a built machine by their names on any machine, those of all machines but the first.
        """
        found: list[str] = []
        runs = 0
        waiting = list(reversed([*sources]))
        while waiting:
            if not self.source(waiting[-1]):
                found.append(waiting.pop())
                continue
            run: dict[tuple[str, ...], None] = {}
            for task in self.nodes:
                own = []
                while waiting and self.source(waiting[-1]) == task:
                    own.append(self.own(waiting.pop(), task))
                run.setdefault(tuple(own))
            if len(run) > 1:
                raise NotAlikeError(f"a node does not read the same of each machine: {', '.join(map(str, run))}.")
            found += each(next(iter(run)))
            runs += 1
        return found, runs

    def require_alike(self, first: int, second: int) -> None:
        """Raise an error unless the nodes of two built machines are equal but for the numbers in their names."""
        ours, theirs = self.nodes[first], self.nodes[second]
        if ours.keys() != theirs.keys():
            odd = sorted(ours.keys() ^ theirs.keys())
            raise NotAlikeError(f"machines {first} and {second} have different nodes: {', '.join(odd[:3])}.")
        for common, name in ours.items():
            node, other = self.editor[name], self.editor[theirs[common]]
            if node.op != other.op or node.op in _LOOPS or self.device(node) != self.device(other):
                raise NotAlikeError(f"{name} ({node.op}) is not the same node on each machine.")
            inputs = [self.own(source, first) for source in node.input]
            if inputs != [self.own(source, second) for source in other.input]:
                raise NotAlikeError(f"{name} has other inputs on machine {second}.")
            if any(self.source(source) not in (0, first) for source in node.input):
                raise NotAlikeError(f"{name} reads a node of another machine.")
            if not _equal(node, other) and not self.stays_outside(name):
                raise NotAlikeError(f"{name} ({node.op}) has other attributes on machine {second}.")

    def device(self, node: node_def_pb2.NodeDef) -> str:
        """Return a node's device: without the task on the machine's own, and whole on a server of all machines.

        A server may be one of the built machines. So a node runs on its own machine only if its partner does, too.
        """
        task = self.of[node.name]
        other = self.nodes[self._partner[task]].get(self.own(node.name, task))
        same = other is not None and self.editor[other].device == node.device
        at_home = host_of(node.device) == self.hosts[task] and not same
        return f"/device:{node.device.rpartition('/device:')[2]}" if at_home else node.device

    def host(self, name: str) -> str:
        """Return the host of a node that is not its machine's; empty if it is."""
        device = self.device(self.editor[name])
        return "" if device.startswith("/device:") else host_of(device)

    def stays_outside(self, name: str) -> bool:
        """Whether a node is in no function: the session feeds it, or its attributes have the machine's number or a replica's."""
        node = self.editor[name]
        if node.op == "Placeholder":
            return True
        if node.op not in ("VarHandleOp", "Const"):
            return False
        index = self.of[name]
        other = self.nodes[self._partner[index]].get(self.own(name, index))
        return other is not None and not _equal(node, self.editor[other])

    def copy(self, target: Editor, name: str, machine: Machine) -> None:
        """Add the node that a machine has in place of a node of a built machine that is in no function."""
        built, node = self.machines[self.of[name]], self.editor[name]
        attrs: dict[str, Any] = {}
        if node.op == "VarHandleOp":
            attrs["shared_name"] = built.moved(node.attr["shared_name"].s.decode(), machine)
        elif node.op == "Const":
            attrs["value"] = tf.make_tensor_proto(self._times(built.own(name), machine))
        inputs = [built.moved(source, machine) for source in node.input]
        device = node.device if self.host(name) else built.device(node.device, machine)
        target.copy(node, built.moved(name, machine), inputs, device, **attrs)

    def _times(self, common: str, machine: Machine) -> np.ndarray:
        """Return the constant of a replica: so many times the integer of replica 1, as in `random_streams.py`."""
        place, first = local(common, "replica1") or (0, "")
        built = {
            self.machines[task].first + place: tf.make_ndarray(self.editor[nodes[common]].attr["value"].tensor)
            for task, nodes in self.nodes.items() if common in nodes
        }
        unit = tf.make_ndarray(self.editor[first].attr["value"].tensor) if first in self.editor else None
        if unit is None or unit.dtype.kind not in "iu" or any(
            not np.array_equal(value, _multiple(unit, index)) for index, value in built.items()
        ):
            raise NotAlikeError(f"{common} has a value on each replica that does not follow from its number.")
        return _multiple(unit, machine.first + place)


def _multiple(unit: np.ndarray, times: int) -> np.ndarray:
    bits = 8 * unit.dtype.itemsize
    large = np.array(unit.astype(f"uint{bits}").astype(object) * times % (1 << bits), object)
    return large.astype(f"uint{bits}").astype(unit.dtype)


def _equal(node: node_def_pb2.NodeDef, other: node_def_pb2.NodeDef) -> bool:
    keys = [set(each.attr).difference(MARKS) for each in (node, other)]
    return keys[0] == keys[1] and all(node.attr[key] == other.attr[key] for key in keys[0])
