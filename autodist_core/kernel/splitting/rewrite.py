"""Rewrite a captured step so that every shard of a split variable is a variable of its own.

In: a captured step and the plans of the split variables. Out: a captured step. For two shards of `w`, gradient `g`::

    AssignSubVariableOp(w, g)  ->  AssignSubVariableOp(w/part_0, Slice(g, 0, 2))
                                   AssignSubVariableOp(w/part_1, Slice(g, 2, 2))

A split variable's part of the update is copied for each shard, and reads the shard's slice of the gradient. Compute
still reads the whole variable, which is put together after each update. The exceptions are a table that is read by
lookups only, whose rows are looked up in the shards, and a variable that is put together for each use (`gathers`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.errors import Refusals
from autodist_core.kernel.analysis.shapes import static_shapes
from autodist_core.kernel.splitting.reductions import combine, constant_of
from autodist_core.kernel.splitting.separable import MEETING_ELEMENTS, Splitting, cut_axis, splittings
from autodist_core.kernel.splitting.shard_lookups import look_up, lookups_refused
from autodist_core.step import naming
from autodist_core.step.casts import grows, shrinks
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import Gradient, GraphItem, Variable
from autodist_core.step.index import StepIndex, output_type
from autodist_core.strategy.compiled import VariablePlan


class SplitRewrite:
    """Rewrites one captured step, node by node, in the order of capture.

    `plans` are the plans of the split variables, and `members` the variables that are split with each.
    `looked_up` names the tables that replicas have no copy of.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PartitionedPS
    >>> made = example_placement(PartitionedPS()).partitioner
    >>> split = SplitRewrite(made.plans, made.members, frozenset(), example_step()).run()
    >>> print(*(variable for variable in split.variables if variable.part_of == "kernel"), sep="; ")
    kernel/part_0 : f32[1,1]; kernel/part_1 : f32[1,1]; kernel/part_2 : f32[1,1]
    """

    def __init__(
        self, plans: Mapping[str, VariablePlan], members: Mapping[str, frozenset[str]], looked_up: frozenset[str],
        item: GraphItem,
    ) -> None:
        self.item = item
        self.step = StepIndex.of(item)
        self.editor = Editor(self.step.graph.library, self.step.graph.versions)
        self.looked_up = looked_up
        self.plans = plans
        self.splits = splittings(self.step, plans, members)
        self.head_of = {member: name for name, split in self.splits.items() for member in split.members}
        self.head_of |= {name: name for name in self.plans}
        self.split_at = {node: split for split in self.splits.values() for node in split.parts}
        self.partial_at = {node: split for split in self.splits.values() for node in split.partial}
        # Other nodes are left out: what they read may exist as shards only.
        self.kept = self.step.alive.union(*((each.handle, each.keys, each.values) for each in item.tables))
        self.kept_once = self.kept - self.split_at.keys()
        self.cast_at_owner: set[str] = set()
        self.parts_of = {each.name: self._parts(each) for each in item.variables if each.name in self.head_of}

    def run(self) -> GraphItem:
        """Return the rewritten step; raise a `CaptureError` if a lookup in a shard cannot take a lookup's place."""
        refusals = Refusals()
        refusals.add(*lookups_refused(self.step, self.looked_up))
        refusals.require_none()
        last_marker = {
            max(map(naming.node_of, gradient.parts), key=self.step.position.__getitem__): gradient
            for gradient in self.item.gradients if gradient.variable in self.splits
        }
        for name, node in self.step.nodes.items():
            if name in self.step.handle_of:
                self._handle(node)
            elif name not in self.kept:
                pass
            elif name in self.step.markers:
                self.editor.copy_captured(node, name, node.input)
                if name in last_marker:
                    self._slice_gradient(last_marker[name])
            elif name in self.split_at:
                self._copy_parts(node, self.split_at[name])
            elif name in self.partial_at:
                split = self.partial_at[name]
                parts = self._copy_parts(node, split)
                combine(self.editor, self.step, node, parts, self.plans[split.variable].variable.shape)
            elif self._is_lookup(name):
                self._look_up(node)
            elif name in self.cast_at_owner:
                dtype = tf.as_dtype(node.attr["DstT"].type)
                self.editor.copy_captured(node, name, self._without_parts(node), SrcT=dtype)
            else:
                self.editor.copy_captured(node, name, self._without_parts(node))
        return replace(
            self.item,
            variables=tuple(found for variable in self.item.variables for found in self._variables(variable)),
            gradients=tuple(found for gradient in self.item.gradients for found in self._gradients(gradient)),
            targets=tuple(found for name in self.item.targets for found in self._targets(name)),
            graph_bytes=self.editor.graph_def(captured=True).SerializeToString(deterministic=True),
        )

    # Parts of the item -------------------------------------------------------------------------------------------

    def _shards(self, variable: str) -> list[Variable]:
        return [shard.variable for shard in self.plans[variable].shards]

    def _parts(self, variable: Variable) -> list[Variable]:
        return [
            variable.part(
                index, shard.axis, shard.offset, shard.shape[shard.axis],
                f"{variable.handle}/part_{index}" if variable.handle else "",
            )
            for index, shard in enumerate(self._shards(self.head_of[variable.name]))
        ]

    def _variables(self, variable: Variable) -> list[Variable]:
        if variable.name not in self.head_of:
            return [variable]
        handle = variable.handle if variable.handle in self.editor else ""
        return [replace(variable, trainable=False, is_sparse=False, handle=handle), *self.parts_of[variable.name]]

    def _gradients(self, gradient: Gradient) -> list[Gradient]:
        if gradient.variable not in self.splits:
            return [gradient]
        return [
            replace(
                gradient, variable=shard.name, values=_part(gradient.values, index),
                indices=_part(gradient.indices, index) if gradient.indices else "",
            )
            for index, shard in enumerate(self._shards(gradient.variable))
        ]

    def _targets(self, name: str) -> list[str]:
        split = self.split_at.get(name)
        return [_part(name, index) for index in range(len(self._shards(split.variable)))] if split else [name]

    # Nodes -------------------------------------------------------------------------------------------------------

    def _handle(self, node: node_def_pb2.NodeDef) -> None:
        name = self.step.handle_of[node.name]
        # The whole variable stays if compute reads it: replicas then have copies, put together from the shards.
        if name not in self.parts_of or name in self.step.read_by_compute - self.looked_up:
            self.editor.copy_captured(node, node.name, node.input)
        for part in self.parts_of.get(name, ()):
            self.editor.copy_captured(node, part.handle, node.input)

    def _without_parts(self, node: node_def_pb2.NodeDef) -> list[str]:
        """Return the inputs without control edges from nodes that are copied for each shard or left out."""
        return [
            source for source in node.input
            if not naming.is_control(source) or naming.node_of(source) in self.kept_once
        ]

    def _copy_parts(self, node: node_def_pb2.NodeDef, split: Splitting) -> list[str]:
        """Copy a node for each shard; return the names of the copies."""
        shards = self._shards(split.variable)
        return [self._copy_part(node, split, index, shard) for index, shard in enumerate(shards)]

    def _copy_part(self, node: node_def_pb2.NodeDef, split: Splitting, index: int, shard: Variable) -> str:
        inputs = []
        attributes: dict[str, Any] = {}
        for position, source in enumerate(self._without_parts(node)):
            producer = naming.node_of(source)
            if naming.is_control(source):
                inputs.append(source)
            elif producer in self.step.handle_of:
                inputs.append(self.parts_of[self.step.handle_of[producer]][index].handle)
            elif producer in split.parts:
                inputs.append(_part(source, index))
            elif node.op == "UnsortedSegmentSum" and position == 2 and shard.axis == 0:
                rows = f"{_part(node.name, index)}/rows"
                inputs.append(constant_of(self.editor, rows, shard.shape[0], tf.int32, node))
                attributes["Tnumsegments"] = tf.int32
            else:
                inputs.append(self._cut(source, node, shard))
        return self.editor.copy_captured(node, _part(node.name, index), inputs, **attributes).name

    def _cut(self, source: str, reader: node_def_pb2.NodeDef, shard: Variable) -> str:
        """Return the name of a shard's slice of a tensor that all shards share."""
        if reader.op not in MEETING_ELEMENTS:
            return source
        position = cut_axis(self.step, source, self.plans[shard.part_of].variable.shape, shard.axis)
        if position is None or position < 0:
            return source
        found = list(static_shapes(self.step)[source])
        begin = [shard.offset if place == position else 0 for place in range(len(found))]
        found[position] = shard.shape[shard.axis]
        producer, output = naming.split(source)
        name = f"{producer}/{output}_of_{naming.safe(shard.name)}"
        return self._slice(name, source, begin, found, self.step.nodes[producer], reader)

    def _slice(
        self, name: str, source: str, begin: list[int], size: list[int],
        producer: node_def_pb2.NodeDef, reader: node_def_pb2.NodeDef | None,
    ) -> str:
        if name in self.editor:
            return name
        marks = {} if reader is None else {naming.UPDATE: reader.attr[naming.UPDATE]}
        bounds = [
            self.editor.constant(f"{name}/{label}", np.array(value, np.int32), tf.int32)
            for label, value in (("begin", begin), ("size", size))
        ]
        dtype = output_type(self.step, source)
        self.editor.add("Slice", name, [source, *bounds], T=dtype, Index=tf.int32, **marks)
        if naming.BRANCH in producer.attr:
            self.editor.mark_branch(name, naming.branch_of(producer))
        return name

    # Gradients and lookups ---------------------------------------------------------------------------------------

    def _slice_gradient(self, gradient: Gradient) -> None:
        """Add a marker for each shard: on a slice of a dense gradient, on the shard's rows of a sparse one."""
        variable, marker = self.step.variables[gradient.variable], self.step.nodes[naming.node_of(gradient.values)]
        for index, shard in enumerate(self._shards(gradient.variable)):
            name = _part(gradient.values, index)
            if not gradient.indices:
                begin = [shard.offset if place == shard.axis else 0 for place in range(len(shard.shape))]
                cast = self.step.behind_identities(gradient.values)
                whole = cast.input[0] if grows(cast) else gradient.values
                source = self._slice(f"{name}/slice", whole, begin, list(shard.shape), marker, None)
                if grows(cast):
                    source = self.editor.copy_captured(cast, f"{name}/cast", [source]).name
                self.editor.copy_captured(marker, name, [source])
                continue
            index_marker = self.step.nodes[naming.node_of(gradient.indices)]
            specs = {
                gradient.values: tf.TensorSpec((None, *variable.shape[1:]), tf.as_dtype(variable.dtype)),
                gradient.indices: tf.TensorSpec((None,), output_type(self.step, gradient.indices)),
            }
            values, indices = self.editor.trace(f"{name}/rows", _rows_of(shard), specs)
            self.editor.copy_captured(marker, name, [values])
            self.editor.copy_captured(index_marker, _part(gradient.indices, index), [indices])

    def _is_lookup(self, name: str) -> bool:
        touched = self.step.touches.get(name, ())
        return not self.step.is_update(name) and any(touch.variable in self.looked_up for touch in touched)

    def _casts_of(self, read: str) -> list[node_def_pb2.NodeDef]:
        """Return what reads the value, if all of that casts it to one smaller type, as the owners can, too."""
        readers = [self.step.nodes[name] for name in self.step.readers.get(read, ()) if name in self.step.alive]
        return readers if all(map(shrinks, readers)) and len({each.attr["DstT"].type for each in readers}) == 1 else []

    def _look_up(self, node: node_def_pb2.NodeDef) -> None:
        """Replace a lookup in a table by lookups in its shards, and a read of the table by reads of all shards."""
        name = self.step.touches[node.name][0].variable
        variable, plan = self.step.variables[name], self.plans[name]
        handles = [part.handle for part in self.parts_of[variable.name]]
        controls = [source for source in self._without_parts(node) if naming.is_control(source)]
        if node.op == "ReadVariableOp":
            reads = [
                self.editor.copy_captured(node, _part(node.name, index), [handle, *controls]).name
                for index, handle in enumerate(handles)
            ]
            dtype, casts = tf.as_dtype(variable.dtype), self._casts_of(node.name)
            sent = tf.as_dtype(casts[0].attr["DstT"].type if casts else plan.wire_dtype or variable.dtype)
            if sent != dtype:
                reads = [self.editor.add("Cast", f"{read}/cast", [read], SrcT=dtype, DstT=sent) for read in reads]
            place = self.editor.constant(f"{node.name}/axis", plan.axis, tf.int32)
            whole = node.name if casts or sent == dtype else f"{node.name}/{sent.name}"
            self.editor.add("ConcatV2", whole, [*reads, place], N=len(reads), T=sent, Tidx=tf.int32)
            if whole != node.name:
                self.editor.add("Cast", node.name, [whole], SrcT=sent, DstT=dtype)
            self.cast_at_owner.update(cast.name for cast in casts)
            return
        ids = node.input[1]
        spec = tf.TensorSpec(static_shapes(self.step).get(ids), tf.as_dtype(node.attr["Tindices"].type))
        look_up(
            self.editor, ids, spec, plan, node.name,
            lambda index, wanted: self.editor.copy_captured(
                node, _part(node.name, index), [handles[index], wanted, *controls]
            ).name,
        )


def _part(name: str, index: int) -> str:
    """Return the name of a shard's copy of a tensor or node."""
    node, output = naming.split(name)
    return naming.tensor(f"{node}/part_{index}", output)


def _rows_of(shard: Variable) -> Callable[..., Any]:
    def rows(values: Any, indices: Any) -> tuple[Any, Any]:
        if shard.axis:
            begin = [shard.offset if place == shard.axis else 0 for place in range(len(shard.shape))]
            return tf.slice(values, begin, [-1, *shard.shape[1:]]), tf.identity(indices)
        offset = tf.constant(shard.offset, indices.dtype)
        here = tf.where(tf.logical_and(indices >= offset, indices < offset + shard.shape[0]))[:, 0]
        return tf.gather(values, here), tf.gather(indices, here) - offset

    return rows
