"""What the kernels need to know of a captured step: who feeds whom, who touches which variable, what is update.

A frozen reading of a GraphItem, made once and shared by all kernels. Nodes stand in creation order, and their index in
that order is the time at which they touch a variable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import op_def_registry

from autodist_core.errors import CaptureError
from autodist_core.step import editor
from autodist_core.step.graph_item import UPDATE, GraphItem, Variable

_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
_RESOURCE = tf.resource.as_datatype_enum
COLLECTED = ("sum", "mean", "only_first_replica")


@dataclass(frozen=True)
class Touch:
    """A node's access to a variable."""

    variable: str
    writes: bool


def accesses(node: node_def_pb2.NodeDef, handles: Callable[[str], str | None]) -> tuple[Touch, ...]:
    """Which variables a node touches and whether it writes them; `handles` names the variable behind an input."""
    found = []
    read_only = set(node.attr["_read_only_resource_inputs"].list.i) if "_read_only_resource_inputs" in node.attr else ()
    for position, name in enumerate(editor.data_inputs(node)):
        variable = handles(editor.node_of(name))
        if variable is not None:
            found.append(Touch(variable, node.op not in _READS and position not in read_only))
    return tuple(found)


class Captured:
    """A captured step, indexed."""

    def __init__(self, item: GraphItem) -> None:
        self.item = item
        self.graph = item.graph_def
        self.nodes = {node.name: node for node in self.graph.node}
        self.index = {node.name: position for position, node in enumerate(self.graph.node)}
        self.end = len(self.index)
        self.variables = {variable.name: variable for variable in item.variables}
        self.handle_of = {variable.handle: variable.name for variable in item.variables if variable.handle}
        self.update_of = {
            node.name: node.attr[UPDATE].i for node in self.graph.node if UPDATE in node.attr
        }
        self.markers = {}
        for gradient in item.gradients:
            for name in (gradient.values, gradient.indices):
                if name:
                    self.markers[editor.node_of(name)] = gradient
        self.touches = {
            node.name: found for node in self.graph.node if (found := accesses(node, self.handle_of.get))
        }

    def variable_of(self, name: str) -> Variable:
        """The variable of that name."""
        return self.variables[name]

    def is_update(self, node: str) -> bool:
        """Whether a node belongs to the update rather than to compute."""
        return node in self.update_of

    @cached_property
    def rows(self) -> dict[str, tuple[int | None, ...]]:
        """The shapes of the inputs that have a row for each example."""
        return {each.name: each.shape for each in self.item.inputs if each.has_rows and each.shape is not None}

    @cached_property
    def pivots(self) -> frozenset[str]:
        """The nodes whose death ends a branch of a conditional."""
        return frozenset(pivot for node in self.graph.node for pivot in editor.branch_of(node))

    def sources(self, name: str) -> list[str]:
        """The nodes on which a node depends: those whose values it reads, and its branch's pivots."""
        node = self.nodes[name]
        return [*(editor.node_of(source) for source in editor.data_inputs(node)), *editor.branch_of(node)]

    def _values(self, name: str) -> list[str]:
        """The nodes that go into a node's value, whichever branch is taken."""
        node = self.nodes[name]
        inputs = [editor.node_of(source) for source in editor.data_inputs(node)]
        return inputs[:1] if node.op == "Switch" else inputs

    def cone(
        self, roots: Iterable[str], stop: Callable[[str], bool] = lambda _: False,
        sources: Callable[[str], list[str]] | None = None,
    ) -> set[str]:
        """The nodes on which the roots depend, roots included; `stop` nodes are included, not passed."""
        sources = sources or self.sources
        seen: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if not stop(name):
                waiting.extend(sources(name))
        return seen

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Names in creation order."""
        return sorted(names, key=self.index.__getitem__)

    @cached_property
    def digest(self) -> str:
        """A short name of the graph's content."""
        return hashlib.sha256(self.item.graph_bytes).hexdigest()[:16]

    @cached_property
    def alive(self) -> set[str]:
        """The nodes that a step has any use for."""
        writes = [name for name, touched in self.touches.items() if any(touch.writes for touch in touched)]
        outputs = [editor.node_of(name) for name in self.item.outputs]
        return self.cone([*writes, *outputs, *self.item.targets, *self.markers])

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The static shapes of captured tensors, where TensorFlow can tell them."""
        return {
            name: tuple(shape.as_list()) for name, shape in self.partial_shapes.items() if shape.is_fully_defined()
        }

    @cached_property
    def partial_shapes(self) -> dict[str, tf.TensorShape]:
        """What TensorFlow can tell of the shapes of captured tensors."""
        known = editor.Editor(self.graph.library, self.graph.versions)
        for node in self.graph.node:
            if node.name in self.handle_of:
                variable = self.variables[self.handle_of[node.name]]
                known.add(
                    "VarHandleOp", node.name, dtype=tf.as_dtype(variable.dtype), shape=tf.TensorShape(variable.shape)
                )
            else:
                known.merge([node])
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(known.graph_def(), name="")
        return {
            editor.canonical(tensor.name): tensor.shape
            for operation in graph.get_operations() for tensor in operation.outputs
        }

    @cached_property
    def read_by_compute(self) -> frozenset[str]:
        """Variables that compute touches."""
        return frozenset(
            touch.variable for node, found in self.touches.items() if not self.is_update(node) for touch in found
        )

    @cached_property
    def late(self) -> frozenset[str]:
        """The nodes of compute made of gradients, or of what was left of these in a variable, and not on to another."""
        before = self.cone(self.markers)
        return frozenset(name for name in self._made_of_gradients if not self.is_update(name) and name not in before)

    @cached_property
    def handed_back(self) -> tuple[str, ...]:
        """Gradients, and what the update makes of them, that late nodes read or that are the step's results."""
        read = {editor.node_of(source) for name in self.late for source in editor.data_inputs(self.nodes[name])}
        read.update(editor.node_of(name) for name in self.item.outputs)
        made = {name for name in self._made_of_gradients if self.is_update(name)}
        return tuple(self.in_order(read & (made | self.markers.keys())))

    @cached_property
    def _made_of_gradients(self) -> frozenset[str]:
        found: set[str] = set()
        written: set[str] = set()
        for name in self.index:
            if name in self.markers:
                continue
            touched = () if self.is_update(name) else self.touches.get(name, ())
            reads = any(not touch.writes and touch.variable in written for touch in touched)
            if reads or any(source in found or source in self.markers for source in self.sources(name)):
                found.add(name)
                written.update(touch.variable for touch in touched if touch.writes)
        return frozenset(found)

    def written_in(self, occurrence: int) -> frozenset[str]:
        """The variables that one of the step's updates writes."""
        return self._written(lambda node: self.update_of.get(node) == occurrence)

    @cached_property
    def written_by_update(self) -> frozenset[str]:
        """Variables that an update writes."""
        return self._written(self.is_update)

    @cached_property
    def written_by_compute(self) -> frozenset[str]:
        """Variables that compute writes."""
        return self._written(lambda node: not self.is_update(node))

    @cached_property
    def reads_own(self) -> dict[str, str]:
        """Nodes that read a variable while its copies differ between replicas, and the variable.

        They do where compute has written it from the batch in this step; sums are on the first replica only.
        """
        inputs = {editor.node_of(tensor.name) for tensor in self.item.inputs} | {self.item.examples}
        equal = self.markers.keys() | set(self.item.cross_replica_sums)
        apart = {name for name, variable in self.variables.items() if variable.aggregation == "sum"}
        differing: set[str] = set()
        found: dict[str, str] = {}
        for name in self.index:
            touched = self.touches.get(name, ())
            for touch in touched:
                if touch.variable in apart:
                    found[name] = touch.variable
            differs = name in inputs or name in found or any(source in differing for source in self.sources(name))
            if differs and name not in equal:
                differing.add(name)
            if not self.is_update(name):
                apart.update(touch.variable for touch in touched if touch.writes and name in differing)
        return found

    @cached_property
    def first_written(self) -> dict[str, int]:
        """The time at which compute first writes a variable."""
        found: dict[str, int] = {}
        for node in self.in_order(self.touches):
            for touch in self.touches[node]:
                if touch.writes and not self.is_update(node):
                    found.setdefault(touch.variable, self.index[node])
        return found

    def _written(self, where: Callable[[str], bool]) -> frozenset[str]:
        return frozenset(
            touch.variable for node, found in self.touches.items() if where(node) for touch in found if touch.writes
        )

    @cached_property
    def trained(self) -> dict[str, tuple[int, ...]]:
        """Variables with a gradient, and the occurrences of each."""
        found: dict[str, tuple[int, ...]] = {}
        for gradient in self.item.gradients:
            found[gradient.variable] = (*found.get(gradient.variable, ()), gradient.occurrence)
        return found

    @cached_property
    def slots(self) -> dict[str, str]:
        """Optimizer variables that belong to one trained variable, and that variable.

        A slot's new value depends on the gradient or the value of one variable only. Where it depends on several (a
        global norm), shape and name decide; where they do not either, every owner keeps a copy.
        """
        return {name: owners[0] for name, owners in self._owners_of_written.items() if len(owners) == 1}

    @cached_property
    def shared(self) -> frozenset[str]:
        """State that belongs to no single variable: iterations, learning rate, loss scale, a norm of all gradients."""
        return self.written_by_update - set(self.trained) - set(self.slots)

    @cached_property
    def _owners_of_written(self) -> dict[str, tuple[str, ...]]:
        written = sorted(self.written_by_update - set(self.trained))
        direct = {name: self._read_for(name) for name in written}
        # A slot may be computed from another slot rather than from the gradient (Adafactor's velocity).
        found = {name: {head for head in direct[name] if head in self.trained} for name in written}
        growing = True
        while growing:
            growing = False
            for name in written:
                reached = set().union(*(found[other] for other in direct[name] if other in found))
                growing |= not reached <= found[name]
                found[name] |= reached
        return {name: tuple(self._closest(name, self._in_variable_order(found[name]))) for name in written}

    def _read_for(self, name: str) -> set[str]:
        """The variables whose gradient or value goes into what the update writes to a variable."""
        writers = [
            node for node, touched in self.touches.items()
            if self.is_update(node) and any(touch.variable == name and touch.writes for touch in touched)
        ]
        cone = self.cone(writers, self.markers.__contains__, self._values)
        found = {self.markers[node].variable for node in cone if node in self.markers}
        for node in cone:
            if self.is_update(node) and node not in writers:
                found.update(touch.variable for touch in self.touches.get(node, ()))
        return found

    def _closest(self, name: str, owners: list[str]) -> list[str]:
        """Of several trained variables, the one of a slot's shape that its name contains; all where none stands out."""
        if len(owners) < 2:
            return owners
        # An operation that writes a slot together with a variable says whose it is.
        beside = {
            touch.variable for touched in self.touches.values() if any(other.variable == name for other in touched)
            for touch in touched
        }.intersection(owners)
        if len(beside) == 1:
            return list(beside)
        shape, (whole, part) = self.variables[name].shape, self._whole_and_part(name)
        named = [
            owner for owner in owners if self.variables[owner].shape == shape
            and self._whole_and_part(owner)[1] == part
            and self._whole_and_part(owner)[0].replace("/", "_") in whole
        ]
        longest = max((len(owner) for owner in named), default=0)
        return [owner for owner in named if len(owner) == longest] or owners

    def _whole_and_part(self, name: str) -> tuple[str, str]:
        whole = self.variables[name].part_of or name
        return whole, name.removeprefix(whole)

    def _in_variable_order(self, names: set[str]) -> list[str]:
        return [variable.name for variable in self.item.variables if variable.name in names]

    def last_of_update(self, occurrence: int) -> int:
        """The time of an update's last write: what is logged of its gradients may be computed long after."""
        return max(
            (self.index[node] for node, touched in self.touches.items()
             if self.update_of.get(node) == occurrence and any(touch.writes for touch in touched)),
            default=self.end,
        )

    @cached_property
    def occurrences(self) -> tuple[int, ...]:
        """The updates of this step, in order."""
        return tuple(sorted(set(self.update_of.values())))


def check(captured: Captured) -> None:
    """Raise a CaptureError that lists everything in a captured step that cannot be distributed."""
    problems = [
        f"trainable variable {name!r} is written outside an optimizer; let optimizer.apply do it, or make it "
        "non-trainable (where a layer's call writes it, as SpectralNormalization's does: freeze or replace that layer)"
        for name in sorted(captured.written_by_compute & set(captured.trained))
    ]
    problems += [
        f"optimizer variable {name!r} is written outside optimizer.apply; use a learning rate schedule, or change it "
        "between steps, in a callback"
        for name in sorted(captured.written_by_compute) if captured.variables[name].kind == "optimizer"
    ]
    for name, occurrences in captured.trained.items():
        if len(set(occurrences)) != len(occurrences):
            problems.append(f"variable {name!r} gets two gradients in one apply")
    if problems:
        raise CaptureError("this training step cannot be distributed: " + "; ".join(problems) + ".")


def is_stateful(node: node_def_pb2.NodeDef) -> bool:
    """Whether running a node twice differs from running it once."""
    definition = op_def_registry.get(node.op)
    return definition is None or definition.is_stateful


def output_type(captured: Captured, name: str) -> tf.DType:
    """The type of a captured tensor."""
    node_name, output = editor.split(name)
    node = captured.nodes[node_name]
    position = 0
    for argument in op_def_registry.get(node.op).output_arg:
        if argument.type_list_attr:
            types = list(node.attr[argument.type_list_attr].list.type)
        else:
            count = node.attr[argument.number_attr].i if argument.number_attr else 1
            types = [node.attr[argument.type_attr].type if argument.type_attr else argument.type] * count
        if output < position + len(types):
            return tf.as_dtype(types[output - position])
        position += len(types)
    raise CaptureError(f"{name}: {node.op} has no output {output}.")
