"""Tell the nodes of each replica that stands for others from the nodes that a graph has once.

In: a draft of replicas that stand for others. Out: `Roles`: for each node its replica, and its name without the
replica's number. For a node of the second replica::

    update/replica1/step    replica 1    update/this/step

Nodes of the first replica, of servers and of what joins the replicas' values are there once, however many replicas
there are. A node belongs to a replica if it runs on the replica's machine, and if its name has the replica's number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.errors import KernelError
from autodist_core.kernel.alike.kinds import Kind
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.placement.devices import host_of
from autodist_core.step import naming
from autodist_core.step.editor import Editor

_FLOWS = {"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "RefSwitch", "RefMerge"}


class NotAlikeError(KernelError):
    """The replicas of a kind do not do the same. The graph of each is then built.

    >>> print(NotAlikeError("replica1/a reads replica2/b."))
    replica1/a reads replica2/b.
    """


@cache
def _pattern(replica: int) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9])(replica|task_){replica}(?=$|[/:])")


def own(text: str, replica: int) -> str:
    """Return a name without a replica's number.

    >>> own("update/replica1/replica12/step:1", 1), own("variable/kernel.replica1", 1)
    ('update/this/replica12/step:1', 'variable/kernel.this')
    """
    return _pattern(replica).sub("this", text)


def of_replica(text: str, built: int, replica: int) -> str:
    """Return the name that a node of a built replica has on another replica, or a device.

    >>> of_replica("^update/replica1/step", 1, 40), of_replica("brought/job_run/task_1/pull", 1, 2)
    ('^update/replica40/step', 'brought/job_run/task_2/pull')
    """
    return _pattern(built).sub(rf"\g<1>{replica}", text)


class Roles:
    """The replica of each node of a draft; 0 for a node that the graph has once.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> Roles(example_draft(PS(), before="Update")).of["replica0/matmul"]
    0
    """

    def __init__(self, draft: Draft, kinds: Sequence[Kind] = ()) -> None:
        self.editor: Editor = draft.editor
        self._partner = {one: other for kind in kinds for one, other in (kind.built, kind.built[::-1])}
        replicas = {replica.host: replica.index for replica in draft.placement.replicas}
        self.of = {node.name: _role(node, replicas) for node in draft.editor}
        self.nodes: dict[int, dict[str, str]] = {index: {} for index in sorted(replicas.values()) if index}
        """The nodes of each replica but the first, by their names without its number."""
        for name, index in self.of.items():
            if index and self.nodes[index].setdefault(own(name, index), name) != name:
                raise NotAlikeError(f"replica {index} has two nodes {own(name, index)}.")

    def source(self, source: str) -> int:
        """Return the replica of the node that produces a tensor."""
        return self.of[naming.node_of(source)]

    def expanded(self, sources: Iterable[str], each: Callable[[str, str], Sequence[str]]) -> tuple[list[str], int]:
        """Return inputs of a node that is there once, with those of all replicas; and how many are of all replicas.

        After a tensor of the first replica come those of the built replicas, in order. `each` returns, for a tensor of
        the first of them and its name without a number, those of all replicas but the first.
        """
        found: list[str] = []
        runs = 0
        waiting = list(sources)
        indices = list(self.nodes)
        while waiting:
            source = waiting[0]
            if not self.source(source):
                found.append(waiting.pop(0))
                continue
            run, waiting = waiting[: len(indices)], waiting[len(indices) :]
            if [self.source(other) for other in run] != indices:
                raise NotAlikeError(f"a node reads {source}, and not the same of each replica.")
            common = {own(other, index) for other, index in zip(run, indices, strict=True)}
            if len(common) > 1:
                raise NotAlikeError(f"a node reads {', '.join(run)}.")
            found += each(source, common.pop())
            runs += 1
        return found, runs

    def require_alike(self, first: int, second: int) -> None:
        """Raise an error unless the nodes of two built replicas are equal but for the replica's number."""
        ours, theirs = self.nodes[first], self.nodes[second]
        if ours.keys() != theirs.keys():
            odd = sorted(ours.keys() ^ theirs.keys())
            raise NotAlikeError(f"replicas {first} and {second} have different nodes: {', '.join(odd[:3])}.")
        for common, name in ours.items():
            node, other = self.editor[name], self.editor[theirs[common]]
            if node.op != other.op or node.op in _FLOWS or naming.BRANCH in node.attr:
                raise NotAlikeError(f"{name} ({node.op}) is not the same node on each replica.")
            inputs = [own(source, first) for source in node.input]
            if inputs != [own(source, second) for source in other.input]:
                raise NotAlikeError(f"{name} has other inputs on replica {second}.")
            if any(self.source(source) not in (0, first) for source in node.input):
                raise NotAlikeError(f"{name} reads a node of another replica.")
            if not _equal(node, other) and not self.stays_outside(name):
                raise NotAlikeError(f"{name} ({node.op}) has other attributes on replica {second}.")

    def stays_outside(self, name: str) -> bool:
        """Whether a node is in no function: the session feeds it, or its attributes have the replica's number."""
        node = self.editor[name]
        if node.op == "Placeholder":
            return True
        if node.op not in ("VarHandleOp", "Const"):
            return False
        index = self.of[name]
        other = self.nodes[self._partner[index]].get(own(name, index))
        return other is not None and not _equal(node, self.editor[other])

    def copy(self, target: Editor, name: str, replica: int) -> None:
        """Add the node that a replica has in place of a node of a built replica that is in no function."""
        index, node = self.of[name], self.editor[name]
        attrs: dict[str, Any] = {}
        if node.op == "VarHandleOp":
            stored = node.attr["shared_name"].s.decode()
            attrs["shared_name"] = re.sub(rf"replica{index}$", f"replica{replica}", stored)
        elif node.op == "Const":
            attrs["value"] = tf.make_tensor_proto(self._times(own(name, index), replica))
        inputs = [of_replica(source, index, replica) for source in node.input]
        device = node.device.replace(f"/task:{index}/", f"/task:{replica}/")
        target.copy(node, of_replica(name, index, replica), inputs, device, **attrs)

    def _times(self, common: str, replica: int) -> np.ndarray:
        """Return the constant of a replica: so many times the integer of replica 1, as in `random_streams.py`."""
        built = {
            index: tf.make_ndarray(self.editor[nodes[common]].attr["value"].tensor)
            for index, nodes in self.nodes.items() if common in nodes
        }
        unit = built.get(1)
        if unit is None or unit.dtype.kind not in "iu" or any(
            not np.array_equal(value, _multiple(unit, index)) for index, value in built.items()
        ):
            raise NotAlikeError(f"{common} has a value on each replica that does not follow from its number.")
        return _multiple(unit, replica)


def _multiple(unit: np.ndarray, times: int) -> np.ndarray:
    bits = 8 * unit.dtype.itemsize
    large = np.array(unit.astype(f"uint{bits}").astype(object) * times % (1 << bits), object)
    return large.astype(f"uint{bits}").astype(unit.dtype)


def _equal(node: node_def_pb2.NodeDef, other: node_def_pb2.NodeDef) -> bool:
    return node.attr.keys() == other.attr.keys() and all(node.attr[key] == other.attr[key] for key in node.attr)


def _role(node: node_def_pb2.NodeDef, replicas: dict[str, int]) -> int:
    index = replicas.get(host_of(node.device), 0)
    return index if index and _pattern(index).search(node.name) else 0
