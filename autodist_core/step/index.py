"""The index of a captured step: which node reads which, which node touches which variable, which nodes are the update.

A StepIndex is made from a GraphItem and is not changed. Nodes stand in creation order. The position of a node in that
order is the time at which it touches a variable.

What has to be computed beyond that is an analysis: a function of the index, whose result is kept with the index (see
`analysis` below, and `autodist_core.kernel.analysis`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.errors import CaptureError
from autodist_core.seams.table import OP_DEF
from autodist_core.step import naming
from autodist_core.step.draws import Draw, Draws
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.naming import UPDATE

_Result = TypeVar("_Result")
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
_RESOURCE = tf.resource.as_datatype_enum


@dataclass(frozen=True)
class Touch:
    """A node's access to a variable."""

    variable: str
    writes: bool


def accesses(node: node_def_pb2.NodeDef, handles: Callable[[str], str | None]) -> tuple[Touch, ...]:
    """Which variables a node touches and whether it writes them; `handles` names the variable behind an input."""
    found = []
    read_only = set(node.attr["_read_only_resource_inputs"].list.i) if "_read_only_resource_inputs" in node.attr else ()
    for position, name in enumerate(naming.data_inputs(node)):
        variable = handles(naming.node_of(name))
        if variable is not None:
            found.append(Touch(variable, node.op not in _READS and position not in read_only))
    return tuple(found)


class StepIndex:
    """A captured step, indexed.

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
                    self.markers[naming.node_of(name)] = gradient
        self.touches = {
            node.name: found for node in self.graph.node if (found := accesses(node, self.handle_of.get))
        }
        self._analyses: dict[Callable[[StepIndex], Any], Any] = {}

    def result_of(self, analyse: Callable[[StepIndex], _Result]) -> _Result:
        """What an analysis says of this step; it runs when it is asked for first."""
        if analyse not in self._analyses:
            self._analyses[analyse] = analyse(self)
        return self._analyses[analyse]

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
        return frozenset(pivot for node in self.graph.node for pivot in naming.branch_of(node))

    def sources(self, name: str) -> list[str]:
        """The nodes on which a node depends: those whose values it reads, and its branch's pivots."""
        node = self.nodes[name]
        return [*(naming.node_of(source) for source in naming.data_inputs(node)), *naming.branch_of(node)]

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
    def alive(self) -> frozenset[str]:
        """The nodes that a step has any use for."""
        writes = [name for name, touched in self.touches.items() if any(touch.writes for touch in touched)]
        outputs = [naming.node_of(name) for name in self.item.outputs]
        return frozenset(self.cone([*writes, *outputs, *self.item.targets, *self.markers]))

    @cached_property
    def read_by_compute(self) -> frozenset[str]:
        """Variables that compute touches."""
        return frozenset(
            touch.variable for node, found in self.touches.items() if not self.is_update(node) for touch in found
        )

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
    def functions(self) -> Draws:
        """The functions of the graph, and what each draws."""
        return Draws(self.graph.library.function)

    @cached_property
    def draws(self) -> dict[str, tuple[Draw, ...]]:
        """The nodes that draw random numbers, themselves or in a function that they run, and what each draws."""
        return {node.name: drawn for node in self.graph.node if (drawn := self.functions.of(node))}

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


def analysis(analyse: Callable[[StepIndex], _Result]) -> Callable[[StepIndex], _Result]:
    """Make a function of a StepIndex an analysis: it runs once for each index, and the index keeps the result.

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
        return step.result_of(analyse)

    return asked


def output_type(captured: StepIndex, name: str) -> tf.DType:
    """The type of a captured tensor."""
    node_name, output = naming.split(name)
    node = captured.nodes[node_name]
    position = 0
    for argument in OP_DEF.get()(node.op).output_arg:
        if argument.type_list_attr:
            types = list(node.attr[argument.type_list_attr].list.type)
        else:
            count = node.attr[argument.number_attr].i if argument.number_attr else 1
            types = [node.attr[argument.type_attr].type if argument.type_attr else argument.type] * count
        if output < position + len(types):
            return tf.as_dtype(types[output - position])
        position += len(types)
    raise CaptureError(f"{name}: {node.op} has no output {output}.")
