"""From a traced TensorFlow function and its (gradient, variable) pairs to a GraphItem.

The trace must have put a `tf.identity` on every gradient on its way into the optimizer; these markers are where the
captured step is cut in two. All that created nodes from `apply` on belongs to the update, and so does what a custom
step does to gradients between the tape and `apply` unless it is linear: there the cut moves before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from autodist_core.capture.cut import Cut, cut
from autodist_core.capture.rewrite.conditionals import take_apart
from autodist_core.capture.rewrite.lookups import fuse_lookups
from autodist_core.capture.traced import Marked, Source, Traced, name_of
from autodist_core.capture.traversal import computed_from
from autodist_core.errors import CaptureError
from autodist_core.step.graph_item import UPDATE, GraphItem, Table, Tensor, Variable

__all__ = ["Marked", "Source", "Traced", "capture", "computed_from"]

_MUTATING_TABLES = {"LookupTableInsertV2", "LookupTableImportV2", "LookupTableRemoveV2"}


def capture(traced: Traced) -> GraphItem:
    """Make the GraphItem of a traced step, or raise a CaptureError that says everything that is in the way."""
    operations = traced.graph.get_operations()
    marks = {
        operation.name: occurrence
        for occurrence, (first, last) in traced.updates.items() for operation in operations[first:last]
    }
    found = cut(traced, marks)
    graph_def = traced.graph.as_graph_def(add_shapes=False)
    for node in graph_def.node:
        if node.name in marks:
            node.attr[UPDATE].i = marks[node.name]
    effects = take_apart(graph_def)
    _bypass_identity_n(graph_def)
    fuse_lookups(graph_def)
    _add_markers(graph_def, found)
    variables, tables = _resolve_captures(traced, graph_def, {g.variable: bool(g.indices) for g in found.gradients})
    marked = {name_of(tensor): name for name, tensor in found.moved.items()}
    return GraphItem(
        variables=variables,
        gradients=tuple(found.gradients),
        inputs=tuple(_tensor(placeholder) for placeholder in traced.inputs),
        outputs=tuple(marked.get(name_of(output), name_of(output)) for output in traced.outputs),
        concat_outputs=traced.concat_outputs,
        examples=traced.examples.op.name,
        total=traced.total.op.name,
        cross_replica_sums=tuple(tensor.op.name for tensor in traced.sums),
        targets=tuple(
            name for op in dict.fromkeys(traced.graph.control_outputs)
            if op.type not in ("ReadVariableOp", "Placeholder") for name in effects.get(op.name, (op.name,))
        ),
        tables=tables,
        graph_bytes=graph_def.SerializeToString(deterministic=True),
    )


def _bypass_identity_n(graph_def: Any) -> None:
    """Let readers of an IdentityN read what it reads: one such node holds all gradients together."""
    several = {node.name: node for node in graph_def.node if node.op == "IdentityN"}

    def through(name: str) -> str:
        producer, _, output = name.partition(":")
        return through(several[producer].input[int(output or 0)]) if producer in several else name

    for node in graph_def.node:
        node.input[:] = [name if name.startswith("^") else through(name) for name in node.input]


def _tensor(placeholder: Any) -> Tensor:
    shape = None if placeholder.shape.rank is None else tuple(placeholder.shape.as_list())
    return Tensor(placeholder.op.name, placeholder.dtype.name, shape)


def _resolve_captures(
    traced: Traced, graph_def: Any, sparse: Mapping[str, bool]
) -> tuple[tuple[Variable, ...], tuple[Table, ...]]:
    """Variables keep a placeholder for their handle; constants move into the graph; tables come with their content."""
    known = {id(source.handle): source.variable for source in traced.sources}
    handles: dict[str, str] = {}
    tables: list[Table] = []
    nodes = {node.name: node for node in graph_def.node}
    for value, placeholder in traced.graph.captures:
        node = nodes[placeholder.op.name]
        if id(value) in known:
            handles[known[id(value)].name] = node.name
        elif value.dtype == tf.resource:
            tables.append(_table(traced, graph_def, node, value))
        elif value.dtype == tf.variant:
            raise CaptureError(
                f"the step captures {value!r}, a {value.dtype.name} that lives in this process only. "
                "Pass data through fit's arguments instead of closing over it."
            )
        else:
            _make_constant(node, value)
    variables = tuple(
        replace(
            source.variable, handle=handles.get(source.variable.name, ""),
            trainable=source.variable.name in sparse, is_sparse=sparse.get(source.variable.name, False),
        )
        for source in traced.sources
    )
    return variables, tuple(tables)


def _make_constant(node: Any, value: Any) -> None:
    array = value.numpy()
    node.op = "Const"
    for key in list(node.attr):
        del node.attr[key]
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array, value.dtype, value.shape))


def _table(traced: Traced, graph_def: Any, node: Any, handle: Any) -> Table:
    readers = [other for other in graph_def.node if node.name in other.input]
    finds = [other for other in readers if other.op == "LookupTableFindV2"]
    if not finds or any(other.op in _MUTATING_TABLES for other in readers):
        raise CaptureError(
            f"the step captures {handle!r}, read by "
            f"{', '.join(sorted({o.op for o in readers})) or 'a nested function'}. "
            "Of resources, only variables and immutable lookup tables can be distributed."
        )
    types = [tf.as_dtype(finds[0].attr[key].type) for key in ("Tin", "Tout")]
    content = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=types[0], Tvalues=types[1])
    names = []
    for label, tensor in zip(("keys", "values"), content, strict=True):
        constant = graph_def.node.add(name=f"{node.name}/{label}")
        _make_constant(constant, tensor)
        names.append(constant.name)
    return Table(node.name, *names)


def _add_markers(graph_def: Any, cut: Cut) -> None:
    """Put a marker on each tensor at which a cut moved, read in the tensor's place by all that is made of gradients."""
    behind: dict[str, list[Any]] = {tensor.op.name: [] for tensor in cut.moved.values()}
    renamed = {}
    for name, tensor in cut.moved.items():
        marker = graph_def.node.add(name=name, op="Identity", input=[name_of(tensor)])
        marker.attr["T"].type = tensor.dtype.as_datatype_enum
        renamed[name_of(tensor)] = name
        behind[tensor.op.name].append(type(marker).FromString(marker.SerializeToString()))
    ordered = []
    for node in graph_def.node:
        if node.name in cut.moved:
            continue
        if UPDATE in node.attr or node.name in cut.outside:
            node.input[:] = [renamed.get(source, source) for source in node.input]
        # Nodes stand in creation order: a marker belongs right behind what it marks.
        ordered += [type(node).FromString(node.SerializeToString()), *behind.get(node.name, ())]
    del graph_def.node[:]
    graph_def.node.extend(ordered)
