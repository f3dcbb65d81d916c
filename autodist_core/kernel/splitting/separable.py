"""Find out whether a variable's part of the update can run shard by shard.

In: a captured step, a variable and an axis. Out: a `Splitting`. For a variable `w` with gradient `g`::

    AssignSubVariableOp(w, Mul(g, rate))    element-wise: each shard runs its own copy
    Sum(Square(g))                          a reduction over the split axis: the shards' results are combined
    Svd(g)                                  an obstacle: it needs the whole variable, and the result names it
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.kernel.analysis.ownership import slots
from autodist_core.kernel.analysis.shapes import static_shapes
from autodist_core.step import naming
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import VariablePlan

_ELEMENTWISE = {
    "Abs", "Add", "AddN", "AddV2", "Cast", "Ceil", "CheckNumerics", "ClipByValue", "Cos", "Div", "DivNoNan", "Elu",
    "Equal", "Erf", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Identity", "Inv",
    "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr",
    "Maximum", "Merge", "Minimum", "Mod", "Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike", "Pow", "RealDiv",
    "Reciprocal", "Relu", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Sigmoid", "Sign", "Sin", "Softplus",
    "Sqrt", "Square", "SquaredDifference", "StopGradient", "Sub", "Switch", "Tanh", "TruncateDiv", "Xdivy", "Xlogy",
    "ZerosLike",
}
_REDUCTIONS = {"All", "Any", "Max", "Mean", "Min", "Sum", "L2Loss"}
_WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
_SCATTERS = {"ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate", "ResourceScatterMin",
             "ResourceScatterMax", "ResourceScatterMul"}
_LOOKS = {"ReadVariableOp", "ResourceGather"}
MEETING_ELEMENTS = _ELEMENTWISE | _WRITES
"""Operations that combine their inputs with the variable element by element, after broadcasting."""


@dataclass(frozen=True)
class Splitting:
    """How one variable's part of the update is split.

    >>> from autodist_core.capture import capture
    >>> from autodist_core.capture.example import example_traced
    >>> item = capture(example_traced(changed=lambda gradient: gradient @ tf.transpose(gradient) @ gradient))
    >>> splitting(StepIndex(item), "kernel", axis=0).obstacle
    'Transpose (transpose)'
    """

    variable: str
    members: frozenset[str]
    """The variable and the slots that are split with it."""
    parts: frozenset[str]
    """The nodes that run once for each shard."""
    partial: frozenset[str]
    """The reductions that run once for each shard, and whose results are combined."""
    obstacle: str = ""
    """The operation that needs the variable whole; empty if there is none."""


def splitting(step: StepIndex, variable: str, axis: int, known: frozenset[str] = frozenset()) -> Splitting:
    """Find how one variable's part of the update is split along an axis; `known` are members that other steps have.

    >>> from autodist_core.capture.example import example_step
    >>> found = splitting(StepIndex(example_step()), "kernel", 0)
    >>> sorted(found.members), sorted(found.partial), found.obstacle
    (['kernel', 'velocity'], ['norm/Sum'], '')
    """
    own = {variable, *known} & step.variables.keys()
    shape = step.variables[min(own)].shape
    members = own | {
        slot for slot, head in slots(step).items() if head == variable and step.variables[slot].shape == shape
    }
    return _PartsSearch(step, variable, frozenset(members), axis, shape).run()


def splittings(
    step: StepIndex, plans: Mapping[str, VariablePlan], members: Mapping[str, frozenset[str]]
) -> dict[str, Splitting]:
    """Find how a step's updates of split variables are split; `members` are the variables that are split with each.

    >>> from autodist_core.capture.example import example_step
    >>> splittings(StepIndex(example_step()), {}, {})
    {}
    """
    updated = step.trained.keys() | step.written_by_update
    return {
        name: splitting(step, name, plan.axis, members.get(name, frozenset())) for name, plan in plans.items()
        if name in step.trained or not updated.isdisjoint(members.get(name, frozenset()))
    }


@dataclass
class _PartsSearch:
    step: StepIndex
    variable: str
    members: frozenset[str]
    axis: int
    shape: tuple[int, ...]
    parts: set[str] = field(default_factory=set)
    partial: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    """The parts whose value is some rows of a shard, and not the whole shard."""

    def run(self) -> Splitting:
        step, obstacle = self.step, ""
        # Only these nodes, and those that read parts, can be parts. A step has many other nodes.
        marked = (name for name, gradient in step.markers.items() if gradient.variable == self.variable)
        touching = (name for member in self.members for name in step.touching.get(member, ()))
        waiting = [(step.position[name], name) for name in {*marked, *touching}]
        heapify(waiting)
        seen: set[str] = set()
        while waiting and not obstacle:
            position, name = heappop(waiting)
            if name in seen:
                continue
            seen.add(name)
            obstacle = self._take(name)
            if name in self.parts:
                for reader in step.readers.get(name, ()):
                    if step.position[reader] > position:
                        heappush(waiting, (step.position[reader], reader))
        returned = self.parts.intersection(naming.node_of(name) for name in self.step.item.outputs)
        if returned:
            obstacle = obstacle or f"the step's result ({min(returned)})"
        return Splitting(self.variable, self.members, frozenset(self.parts), frozenset(self.partial), obstacle)

    def _take(self, name: str) -> str:
        """Look at one node, in the order of capture; return it as an obstacle if it needs the variable whole."""
        marked = self.step.markers.get(name)
        if marked is not None:
            return self._keep(name, bool(marked.indices)) if marked.variable == self.variable else ""
        if name not in self.step.alive:
            return ""
        if self.step.is_update(name):
            return self._look_at(name)
        reads = not self.parts.isdisjoint(self.step.sources(name))
        return f"{self.step.nodes[name].op} ({name})" if reads else ""

    def _look_at(self, name: str) -> str:
        """Sort one node into `parts` or `partial`; return it as an obstacle if it needs the variable whole."""
        step, node = self.step, self.step.nodes[name]
        touched = step.touched_by([name]) & self.members
        values = [source for source in naming.data_inputs(node) if naming.node_of(source) not in step.handle_of]
        split = [source for source in values if naming.node_of(source) in self.parts]
        if not touched and not split:
            return ""
        if not touched and node.op in _REDUCTIONS and self.axis in reduced_axes(step, node, len(self.shape)):
            # The number of rows of a mean is not known before the step.
            if node.op == "Mean" and any(naming.node_of(source) in self.rows for source in split):
                return f"{node.op} ({name})"
            self.partial.add(name)
            return ""
        return self._part(node, touched, values, split)

    def _part(self, node: node_def_pb2.NodeDef, touched: set[str], values: list[str], split: list[str]) -> str:
        others = [source for source in values if source not in split]
        in_rows = any(naming.node_of(source) in self.rows for source in split)
        why = f"{node.op} ({node.name})"
        if touched and node.op not in _LOOKS | _WRITES | _SCATTERS and not node.op.startswith("ResourceApply"):
            return why
        if not touched and node.op == "UnsortedSegmentSum" and in_rows:
            return self._keep(node.name, False)
        if not touched and node.op not in _ELEMENTWISE:
            return why
        if node.op.startswith("ResourceApply"):
            # All inputs but the gradient must be scalars.
            scalars = all(static_shapes(self.step).get(source) == () for source in others)
            return self._keep(node.name, False) if scalars and not in_rows else why
        if node.op in _SCATTERS | {"ResourceGather"}:
            return self._keep(node.name, node.op == "ResourceGather") if in_rows else why
        if not touched and not in_rows and static_shapes(self.step).get(node.name) != self.shape:
            return f"{why} makes another shape of it"
        for source in others:
            cut = cut_axis(self.step, source, self.shape, self.axis)
            if cut is None or (in_rows and static_shapes(self.step).get(source) != ()):
                return f"{why} reads {source}"
        return self._keep(node.name, in_rows)

    def _keep(self, name: str, in_rows: bool) -> str:
        self.parts.add(name)
        if in_rows:
            self.rows.add(name)
        return ""


def reduced_axes(step: StepIndex, node: node_def_pb2.NodeDef, rank: int) -> frozenset[int]:
    """Return the axes that a reduction of a tensor of this rank reduces; empty if that is not known in advance.

    >>> from autodist_core.capture.example import example_step
    >>> step = StepIndex(example_step())
    >>> sorted(reduced_axes(step, step.nodes["norm/Sum"], rank=2))
    [0, 1]
    """
    if node.op == "L2Loss":
        return frozenset(range(rank))
    axes = step.nodes[naming.node_of(node.input[1])]
    if axes.op != "Const" or not rank:
        return frozenset()
    return frozenset(int(axis) % rank for axis in np.ravel(tf.make_ndarray(axes.attr["value"].tensor)))


def cut_axis(step: StepIndex, source: str, shape: tuple[int, ...], axis: int) -> int | None:
    """Return the axis along which a tensor is cut that is combined with shards of a variable.

    The variable has this `shape` and is split along this `axis`. Axes are aligned from the right, as in broadcasting.
    The result is -1 if all shards use the whole tensor, and None if its shape is not known.

    >>> from autodist_core.capture.example import example_step
    >>> step = StepIndex(example_step())
    >>> cut_axis(step, "gradient/0/0", (3, 1), axis=0), cut_axis(step, "mul_2/x", (3, 1), axis=0)
    (0, -1)
    """
    found = static_shapes(step).get(source)
    if found is None:
        return None
    position = axis - (len(shape) - len(found))
    if position < 0 or found[position] == 1:
        return -1
    return position if found[position] == shape[axis] else None
