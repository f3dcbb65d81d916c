"""Tell the nodes of each unit that stands for others from the nodes that a graph has once.

In: a graph with units that stand for others, and their kinds. Out: `Roles`: for each node its unit, and its name in any
unit. If machines are the units, for a node of the second machine, whose only replica is replica 1::

    update/replica1/step    machine 1    update/local0/step

Nodes of the first machine, of servers and of what joins the replicas' values are there once, however many machines
there are. A node belongs to a machine if its name has the number of the machine's task or of one of its replicas. It
runs there, or on the same server for all machines, as a lookup of rows does.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.errors import KernelError
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.units.kinds import Kind
from autodist_core.kernel.units.unit import Unit, local, words
from autodist_core.step import naming
from autodist_core.step.editor import Editor

_WITNESS = -1
_LOOPS = {"Enter", "Exit", "NextIteration", "LoopCond"}


class UnlikeError(KernelError):
    """The units of a kind do not do the same. The graph of each replica is then built.

    >>> print(UnlikeError("replica1/a reads replica2/b."))
    replica1/a reads replica2/b.
    """


class Roles:
    """The unit of each node of a graph, by the unit's number; 0 for a node that the graph has once.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> Roles(example_draft(PS(), before="Update").editor).of["replica0/matmul"]
    0
    """

    def __init__(self, editor: Editor, kinds: Sequence[Kind] = ()) -> None:
        self.editor = editor
        self.units = dict(enumerate((unit for kind in kinds for unit in kind.built), 1))
        self.number = {unit: number for number, unit in self.units.items()}
        unit_of = {word: number for number, unit in reversed(self.units.items()) for word in unit.words}
        self.own = cache(self._own)
        self.device = cache(self._device)
        self._kind = {self.number[unit]: kind for kind in kinds for unit in kind.built}
        self.of = {
            node.name: min((unit_of[word] for word in words(node.name) if word in unit_of), default=0)
            for node in editor
        }
        self.nodes: dict[int, dict[str, str]] = {number: {} for number in self.units}
        """The nodes of each unit, by their names in any unit; and those of the witness, which the graph has once."""
        for name, number in self.of.items():
            if number and self.nodes[number].setdefault(self.own(name, number), name) != name:
                raise UnlikeError(f"{self.units[number].label} has two nodes {self.own(name, number)}.")
        for witness in {kind.witness for kind in kinds if kind.witness}:
            self.units[_WITNESS], self.number[witness] = witness, _WITNESS
            own = (name for name, number in self.of.items() if not number and witness.has(name))
            self.nodes[_WITNESS] = {witness.own(name): name for name in own}

    def _own(self, text: str, number: int) -> str:
        """Return the name in any unit of a node of a unit."""
        return self.units[number].own(text)

    def source(self, source: str) -> int:
        """Return the unit of the node that produces a tensor."""
        number = self.of.get(source)
        return self.of[naming.node_of(source)] if number is None else number

    def expanded(
        self, sources: Iterable[str], each: Callable[[Kind, Sequence[str]], Sequence[str]]
    ) -> tuple[list[str], bool]:
        """Return inputs of a node that is there once, with those of all units; and whether there are more than before.

        Tensors of the built units of a kind stand one behind the other. `each` returns, for those of the first of these
        units, those of all members of the kind.
        """
        before, found = list(sources), list[str]()
        waiting = [(number, list(run)) for number, run in groupby(before, self.source)][::-1]
        while waiting:
            if not waiting[-1][0]:
                found += waiting.pop()[1]
                continue
            kind = self._kind[waiting[-1][0]]
            run = [waiting.pop()[1] if waiting and waiting[-1][0] == self.number[unit] else [] for unit in kind.built]
            own = [[self.own(source, self.number[unit]) for source in sources]
                   for unit, sources in zip(kind.built, run, strict=True)]
            if any(each != own[0] for each in own):
                raise UnlikeError(f"a node does not read the same of each unit: {own[0][:2]}, {own[1][:2]}.")
            if len(own) == 1 and len(own[0]) > 1 and not _as_of_witness(kind, [*map(self._behind, found)], run[0]):
                raise UnlikeError(f"the order is not known in which a node reads values of units: {own[0][:2]}.")
            found += each(kind, run[0])
        return found, len(found) > len(before)

    def _behind(self, source: str) -> str:
        """Return what a sum reads first, in place of the snapshot of it."""
        return self.editor[source].input[0] if source.startswith(f"{naming.FIRST}/") else source

    def require_same(self, kind: Kind) -> None:
        """Raise an error unless the nodes of the first two units that show it are equal but for their numbers.

        These are two units of the kind. If one is built, the other one is of another machine, and reads what is there,
        or it is the witness, which has other nodes besides.
        """
        first, second = (self.number[unit] for unit in kind.shown_by[:2])
        one, two = (unit.label for unit in kind.shown_by[:2])
        ours, theirs = self.nodes[first], self.nodes[second]
        if kind.witness:
            theirs = {common: theirs.get(common, name) for common, name in ours.items()}
        if ours.keys() != theirs.keys():
            odd = sorted(ours.keys() ^ theirs.keys())
            raise UnlikeError(f"{one} and {two} have different nodes: {', '.join(odd[:3])}.")
        for common, name in ours.items():
            node, other = self.editor[name], self.editor[theirs[common]]
            if node.op != other.op or node.op in _LOOPS:
                raise UnlikeError(f"{name} ({node.op}) is not the same node on {two}.")
            if any(self.source(source) not in (0, first) for source in node.input):
                raise UnlikeError(f"{name} reads a node of another unit.")
            # What reads the witness's value may read one of each machine, of which no other one is here.
            if kind.witness and any(kind.witness.has(naming.node_of(source)) for source in node.input):
                raise UnlikeError(f"{name} reads a node of the first machine.")
            if difference := "" if kind.witness else self._difference(node, other, bool(kind.like)):
                raise UnlikeError(f"{name} {difference} on {two}.")

    def _difference(self, node: node_def_pb2.NodeDef, other: node_def_pb2.NodeDef, on_other_machine: bool) -> str:
        """Return what else than their numbers is different of two units' nodes; empty if nothing is."""
        inputs, others = ([self.own(source, self.of[each.name]) for source in each.input] for each in (node, other))
        if self.device(node.name) != self.device(other.name):
            return f"({node.op}) is not on the same device"
        if len(inputs) != len(others) or (inputs != others and not on_other_machine):
            return "has other inputs"
        if not _equal(node, other) and not self.stays_outside(node.name):
            return f"({node.op}) has other attributes"
        return ""

    def _device(self, name: str) -> str:
        """Return a node's device in a function: without the task on the unit's own machine, and whole on a server.

        A server may be on a built machine. So a node runs on its own machine only if the same node of another machine
        runs somewhere else. It is empty for the device of the call.
        """
        node, number = self.editor[name], self.of[name]
        unit = self.units[number]
        own, task = self.own(name, number), unit.task
        elsewhere = next(
            (nodes[own] for other, nodes in self.nodes.items() if self.units[other].task != task and own in nodes), ""
        )
        if host_of(node.device) != unit.host or (elsewhere and self.editor[elsewhere].device == node.device):
            return node.device
        if not unit.is_machine and node.device == unit.device:
            return ""
        return f"/device:{node.device.rpartition('/device:')[2]}"

    def host(self, name: str) -> str:
        """Return the host of a node on a server; empty if the node is on its own machine."""
        device = self.device(name)
        return host_of(device) if "/task:" in device else ""

    def stays_outside(self, name: str) -> bool:
        """Whether a node is in no function: the session feeds it, or its attributes have the number of its unit."""
        node = self.editor[name]
        if node.op == "Placeholder":
            return True
        if node.op not in ("VarHandleOp", "Const"):
            return False
        number = self.of[name]
        if node.op == "VarHandleOp" and self.units[number].has(node.attr["shared_name"].s.decode()):
            return True
        kind, own = self._kind[number], self.own(name, number)
        partners = [self.nodes[self.number[unit]].get(own, name) for unit in kind.shown_by]
        if kind.witness and partners[-1] == name:
            # The first replica of all has no constants of random streams, and the second one has.
            _, partners[-1] = local(own, "replica1") or (0, name)
        shown = (self.editor[partner] for partner in partners if partner != name and partner in self.editor)
        return not all(_equal(node, other) for other in shown)

    def copy(self, target: Editor, name: str, unit: Unit) -> None:
        """Add the node that a unit has in place of a node of a built unit that is in no function."""
        built, node = self.units[self.of[name]], self.editor[name]
        attrs: dict[str, Any] = {}
        if node.op == "VarHandleOp":
            attrs["shared_name"] = built.moved(node.attr["shared_name"].s.decode(), unit)
        elif node.op == "Const" and self.stays_outside(name):
            attrs["value"] = tf.make_tensor_proto(self._times(built.own(name), unit))
        inputs = [built.moved(source, unit) for source in node.input]
        device = node.device if self.host(name) else built.moved_device(node.device, unit)
        target.copy(node, built.moved(name, unit), inputs, device, **attrs)

    def _times(self, common: str, unit: Unit) -> np.ndarray:
        """Return the constant of a replica: so many times the integer of replica 1, as in `random_streams.py`."""
        place, first = local(common, "replica1") or (0, "")
        built = {
            self.units[number].first + place: tf.make_ndarray(self.editor[nodes[common]].attr["value"].tensor)
            for number, nodes in self.nodes.items() if common in nodes
        }
        once = tf.make_ndarray(self.editor[first].attr["value"].tensor) if first in self.editor else None
        if once is None or once.dtype.kind not in "iu" or any(
            not np.array_equal(value, _multiple(once, index)) for index, value in built.items()
        ):
            raise UnlikeError(f"{common} has a value on each replica that does not follow from its number.")
        return _multiple(once, unit.first + place)


def _as_of_witness(kind: Kind, before: Sequence[str], run: Sequence[str]) -> bool:
    """Whether a node reads values of the witness in the same way, right before those of a unit.

    Then it reads all values of a unit, and then those of the next one. Else the witness's values would be among them.
    """
    if kind.witness is None:
        return False
    places, own = (
        [found and found[0] for found in (local(unit.own(source), "") for source in sources)]
        for unit, sources in ((kind.witness, before[-len(run):]), (kind.first, run))
    )
    return places == own


def _multiple(once: np.ndarray, times: int) -> np.ndarray:
    bits = 8 * once.dtype.itemsize
    large = np.array(once.astype(f"uint{bits}").astype(object) * times % (1 << bits), object)
    return large.astype(f"uint{bits}").astype(once.dtype)


def _equal(node: node_def_pb2.NodeDef, other: node_def_pb2.NodeDef) -> bool:
    ours, theirs = dict(node.attr), dict(other.attr)
    if ours == theirs:
        return True
    keys = [set(each).difference(naming.MARKS) for each in (ours, theirs)]
    return keys[0] == keys[1] and all(ours[key] == theirs[key] for key in keys[0])
