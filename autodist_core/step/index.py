"""The index of a captured step: which node reads which node, which node touches which variable, which nodes update.

A StepIndex is made from a GraphItem and does not change. It has the nodes in the order of their creation. The position
of a node in that order is the time at which the node touches variables.

Other questions about a step are answered by analyses. An analysis is a function of the index, and the index stores its
result (see `analysis` below, and `autodist_core.kernel.analysis`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.step import naming
from autodist_core.step.draws import Draw, Draws
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.grouping import by_key
from autodist_core.step.ports import outputs_of
from autodist_core.step.reaching import reached

_Result = TypeVar("_Result")
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
_RESOURCE = tf.resource.as_datatype_enum


@dataclass(frozen=True)
class Touch:
    """One access of a node to a variable.

    >>> Touch("dense/kernel", writes=True)
    Touch(variable='dense/kernel', writes=True)
    """

    variable: str
    writes: bool


def accesses(node: node_def_pb2.NodeDef, handles: Callable[[str], str | None]) -> tuple[Touch, ...]:
    """Return the accesses of a node to variables.

    `handles` returns the name of the variable whose handle a node is, or ``None`` for another node.

    >>> read = node_def_pb2.NodeDef(name="read", op="ReadVariableOp", input=["kernel_handle"])
    >>> accesses(read, {"kernel_handle": "dense/kernel"}.get)
    (Touch(variable='dense/kernel', writes=False),)
    """
    named = [(position, handles(naming.node_of(name))) for position, name in enumerate(naming.data_inputs(node))]
    touched = [(position, variable) for position, variable in named if variable is not None]
    if not touched:
        return ()
    read_only = set(node.attr["_read_only_resource_inputs"].list.i) if "_read_only_resource_inputs" in node.attr else ()
    reads = node.op in _READS
    return tuple(Touch(variable, not reads and position not in read_only) for position, variable in touched)


class StepIndex:
    """The index of one captured step.

    >>> from autodist_core import GraphItem
    >>> from autodist_core.step.editor import Editor
    >>> graph = Editor()
    >>> graph.add("Placeholder", "x", dtype=tf.float32), graph.add("Neg", "y", ["x"], T=tf.float32)
    ('x', 'y')
    >>> step = StepIndex(GraphItem((), outputs=("y",), graph_bytes=graph.graph_def().SerializeToString()))
    >>> step.sources("y"), step.in_order({"y", "x"}), step.alive
    (['x'], ['x', 'y'], frozenset({...}))
    """

    def __init__(self, item: GraphItem) -> None:
        self.item = item
        self.graph = item.graph_def
        self.nodes = {node.name: node for node in self.graph.node}
        self.position = {node.name: position for position, node in enumerate(self.graph.node)}
        self.end = len(self.position)
        self.variables = {variable.name: variable for variable in item.variables}
        self.handle_of = {variable.handle: variable.name for variable in item.variables if variable.handle}
        self.update_of = {
            node.name: node.attr[naming.UPDATE].i for node in self.graph.node if naming.UPDATE in node.attr
        }
        self.markers = {}
        for gradient in item.gradients:
            for name in gradient.parts:
                self.markers[naming.node_of(name)] = gradient
        self.touches = {node.name: found for node in self.graph.node if (found := accesses(node, self.handle_of.get))}
        self.analysed: dict[Callable[[StepIndex], Any], Any] = {}
        """The results of the analyses that have run (see `analysis`)."""

    @staticmethod
    def of(item: GraphItem) -> StepIndex:
        """Return the index of a step. An item has one index, so that each analysis of it runs once.

        >>> item = GraphItem(())
        >>> StepIndex.of(item) is StepIndex.of(item)
        True
        """
        if StepIndex not in item.found:
            item.found[StepIndex] = StepIndex(item)
        index: StepIndex = item.found[StepIndex]
        return index

    def is_update(self, node: str) -> bool:
        """Whether a node belongs to an update. All other nodes belong to compute."""
        return node in self.update_of

    @cached_property
    def rows(self) -> dict[str, tuple[int | None, ...]]:
        """The shapes of the inputs that have one row for each example, by name."""
        return {
            each.name: each.shape for each in self.item.inputs
            if each.has_rows and each.shape is not None and not each.part
        }

    @cached_property
    def batch(self) -> frozenset[str]:
        """The placeholders of the inputs of which each replica gets its rows."""
        return frozenset(each.name for each in self.item.inputs if each.has_rows)

    @cached_property
    def whole(self) -> frozenset[str]:
        """The placeholders of the inputs that every replica gets whole, such as a learning rate."""
        return frozenset(each.name for each in self.item.inputs if not each.has_rows)

    @cached_property
    def tables(self) -> frozenset[str]:
        """The handles of the lookup tables."""
        return frozenset(table.handle for table in self.item.tables)

    @cached_property
    def pivots(self) -> frozenset[str]:
        """The pivots of all branches. A pivot is a node without a value when its branch is not taken."""
        return frozenset(pivot for node in self.graph.node for pivot in naming.branch_of(node))

    def sources(self, name: str) -> list[str]:
        """Return the nodes on which a node depends: the nodes whose values it reads, and the pivots of its branches."""
        return self._sources[name]

    @cached_property
    def _sources(self) -> dict[str, list[str]]:
        return {
            name: [*map(naming.node_of, naming.data_inputs(node)), *naming.branch_of(node)]
            for name, node in self.nodes.items()
        }

    def behind_identities(self, tensor: str, passing: Collection[str] = ("Identity",)) -> node_def_pb2.NodeDef:
        """Return the node that computes a tensor, behind nodes that only hand it on, as markers do."""
        node = self.nodes[naming.node_of(tensor)]
        while node.op in passing:
            node = self.nodes[naming.node_of(node.input[0])]
        return node

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """The nodes that depend on a node directly, in the order of their creation, for each node that has some."""
        return by_key((source, name) for name in self.position for source in dict.fromkeys(self.sources(name)))

    @cached_property
    def touching(self) -> dict[str, list[str]]:
        """The nodes that read or write a variable, in the order of their creation, for each variable."""
        return by_key(
            (variable, name) for name, touched in self.touches.items()
            for variable in dict.fromkeys(touch.variable for touch in touched)
        )

    def cone(
        self, roots: Iterable[str], stop: Callable[[str], bool] | None = None,
        sources: Callable[[str], Iterable[str]] | None = None,
    ) -> set[str]:
        """Return the roots and all nodes on which they depend.

        A node for which `stop` is true is part of the result, but the nodes on which it depends are not followed.
        `sources` returns the nodes on which a node depends, in place of the method of that name.
        """
        before = sources or self.sources
        return set(reached(roots, before if stop is None else lambda name: () if stop(name) else before(name)))

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return the names of nodes in the order of the nodes' creation."""
        return sorted(names, key=self.position.__getitem__)

    @cached_property
    def digest(self) -> str:
        """A short hash of the graph's content."""
        return hashlib.sha256(self.item.graph_bytes).hexdigest()[:16]

    def behind(self, names: Iterable[str]) -> set[str]:
        """Return these nodes and all nodes whose values are made of theirs.

        >>> from autodist_core.capture.example import example_step
        >>> step = StepIndex.of(example_step())
        >>> "marker" in step.behind(["matmul"]), "matmul" in step.behind(["marker"])
        (True, False)
        """
        found = set(names)
        for name in self.position:
            if not found.isdisjoint(self.sources(name)):
                found.add(name)
        return found

    @cached_property
    def writers(self) -> frozenset[str]:
        """The nodes that write a variable."""
        return frozenset(name for name, touched in self.touches.items() if any(touch.writes for touch in touched))

    @cached_property
    def side_effects(self) -> frozenset[str]:
        """The nodes of compute with side effects: writes and assertions."""
        return frozenset(name for name in {*self.writers, *self.item.targets} if not self.is_update(name))

    def touched_by(self, nodes: Iterable[str]) -> set[str]:
        """Return the variables that these nodes read or write."""
        return {touch.variable for node in nodes for touch in self.touches.get(node, ())}

    def written_by(self, nodes: Iterable[str]) -> set[str]:
        """Return the variables that these nodes write."""
        return {touch.variable for node in nodes for touch in self.touches.get(node, ()) if touch.writes}

    def writes_of(self, variables: Collection[str]) -> set[str]:
        """Return the nodes of compute that write one of these variables."""
        writers = self.writers - self.update_of.keys()
        return {name for name in writers if not self.written_by([name]).isdisjoint(variables)}

    @cached_property
    def alive(self) -> frozenset[str]:
        """The nodes on which a write, an output, a target or a gradient of the step depends."""
        outputs = [naming.node_of(name) for name in self.item.outputs]
        return frozenset(self.cone([*self.writers, *outputs, *self.item.targets, *self.markers]))

    @cached_property
    def read_by_compute(self) -> frozenset[str]:
        """The variables that nodes of compute read or write."""
        return frozenset(self.touched_by(self.touches.keys() - self.update_of.keys()))

    def written_in(self, occurrence: int) -> set[str]:
        """Return the variables that the update with this number writes."""
        return self.written_by(node for node, number in self.update_of.items() if number == occurrence)

    @cached_property
    def written_by_update(self) -> frozenset[str]:
        """The variables that an update writes."""
        return frozenset(self.written_by(self.update_of))

    @cached_property
    def written_by_compute(self) -> frozenset[str]:
        """The variables that nodes of compute write."""
        return frozenset(self.written_by(self.touches.keys() - self.update_of.keys()))

    @cached_property
    def functions(self) -> Draws:
        """The functions of the graph, and the random draws in each."""
        return Draws(self.graph.library.function)

    @cached_property
    def draws(self) -> dict[str, tuple[Draw, ...]]:
        """The draws of each node that draws random numbers, by itself or in a function that the node runs."""
        return {node.name: drawn for node in self.graph.node if (drawn := self.functions.of(node))}

    @cached_property
    def trained(self) -> dict[str, tuple[int, ...]]:
        """The variables that have gradients, with the numbers of the updates that apply them."""
        found = by_key((gradient.variable, gradient.occurrence) for gradient in self.item.gradients)
        return {variable: tuple(occurrences) for variable, occurrences in found.items()}

    def last_of_update(self, occurrence: int) -> int:
        """Return the time of the last write of an update.

        Nodes that only compute logged values from the gradients may come much later.
        """
        writes = (node for node in self.writers if self.update_of.get(node) == occurrence)
        return max((self.position[node] for node in writes), default=self.end)

    @cached_property
    def occurrences(self) -> tuple[int, ...]:
        """The numbers of the step's updates, in order."""
        return tuple(sorted(set(self.update_of.values())))

    @cached_property
    def forward_updates(self) -> frozenset[int]:
        """The numbers of the updates without gradients that run before one with gradients."""
        with_gradients = {gradient.occurrence for gradient in self.item.gradients}
        last = max(with_gradients, default=-1)
        return frozenset(each for each in self.occurrences if each < last and each not in with_gradients)


def analysis(analyse: Callable[[StepIndex], _Result]) -> Callable[[StepIndex], _Result]:
    """Make an analysis of a function of a StepIndex: it runs once for each index, and the index stores the result.

    >>> @analysis
    ... def size(step):
    ...     print("counting")
    ...     return len(step.nodes)
    >>> from autodist_core import GraphItem
    >>> step = StepIndex(GraphItem(()))
    >>> size(step), size(step)
    counting
    (0, 0)
    """

    @wraps(analyse)
    def asked(step: StepIndex) -> _Result:
        if analyse not in step.analysed:
            step.analysed[analyse] = analyse(step)
        result: _Result = step.analysed[analyse]
        return result

    return asked


def output_type(step: StepIndex, name: str) -> tf.DType:
    """Return the type of a tensor of the captured graph.

    >>> from autodist_core.step.editor import Editor
    >>> graph = Editor()
    >>> x = graph.add("Placeholder", "x", dtype=tf.float32)
    >>> from autodist_core import GraphItem
    >>> output_type(StepIndex(GraphItem((), graph_bytes=graph.graph_def().SerializeToString())), "x:0")
    tf.float32
    """
    node, output = naming.split(name)
    return outputs_of(step.nodes[node], step.functions.functions)[output].dtype
