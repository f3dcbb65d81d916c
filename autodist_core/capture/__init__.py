"""Capture: from a traced TensorFlow function and its (gradient, variable) pairs to a `GraphItem`.

In: a `Traced`, one flat function graph and what the front knows about it. Out: a `GraphItem`, cut into compute and
update. For one dense layer and SGD, in short::

    compute    gradient = MatMul(inputs, output gradient)
               marker   = Identity(gradient)
    update     step     = Mul(marker, learning rate)
               AssignSubVariableOp(kernel, step)

The front puts a marker, a `tf.identity`, on every gradient on its way into the optimizer. The captured step is cut at
the markers. All nodes that `apply` creates belong to the update. Where a custom step changes gradients nonlinearly
between the tape and `apply`, the cut moves before the change, and the change belongs to the update, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from autodist_core.capture import batch_axis
from autodist_core.capture.concrete import concrete_function
from autodist_core.capture.cut import Cut, cut
from autodist_core.capture.extrema import combined_as_written
from autodist_core.capture.forward_updates import with_forward_updates
from autodist_core.capture.gathering import gathering, rows_of_all, whole_batch
from autodist_core.capture.gradient_uses import own_gradient_uses
from autodist_core.capture.longest import with_longest
from autodist_core.capture.refuse.resources import captured_resources
from autodist_core.capture.refuse.writes import written_outside
from autodist_core.capture.rewrite.conditionals import take_apart
from autodist_core.capture.rewrite.lookups import fuse_lookups
from autodist_core.capture.rewrite.markers import marked
from autodist_core.capture.rewrite.shares import count_by_share
from autodist_core.capture.source_lines import source_lines
from autodist_core.capture.traced import Counted, Exchanged, Flags, Marked, Source, Traced, name_of, unused, variable_of
from autodist_core.capture.traversal import computed_from, copied, inputs_first, reached_from, sources, touches_of
from autodist_core.capture.whole_draws import draw_whole, draws_of_rows
from autodist_core.errors import Refusals
from autodist_core.seams import table as seams
from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import GraphItem, Joined, Table, Tensor, Variable
from autodist_core.step.grouping import by_key

__all__ = [
    "Counted", "Exchanged", "Flags", "Marked", "Source", "Traced", "capture", "combined_as_written",
    "computed_from", "concrete_function", "copied", "gathering", "inputs_first", "own_gradient_uses", "reached_from",
    "rows_of_all", "source_lines", "sources", "touches_of", "unused", "variable_of", "whole_batch", "with_longest",
]  # fmt: skip


def capture(traced: Traced, joined: tuple[Joined, ...] | None = None) -> GraphItem:
    """Make the `GraphItem` of a traced step; raise a `CaptureError` if the step cannot be distributed.

    The error lists the reasons of all examinations of the traced step (see `refuse`). `joined` says how the replicas'
    integers become one, for a front that has followed the batch axis itself.

    >>> from autodist_core.capture.example import example_traced
    >>> item = capture(example_traced())
    >>> item.gradients[0].values, item.outputs
    ('gradient/0/0', ('loss', 'norm/Squeeze'))
    """
    if joined is None:
        joined = batch_axis.joined(traced, batch_axis.follow(traced, {}).state_of)
    seams.check()
    refusals, marks = Refusals(), dict(traced.updates)
    found = Cut()
    with refusals.collecting():
        found = cut(traced, marks)
    graph = Editor.of(traced.graph.as_graph_def(add_shapes=False))
    for name, occurrence in marks.items():
        if name in graph:
            graph.mark_update(name, occurrence)
    graph = count_by_share(graph, traced.counted, traced.examples.op.name, traced.total.op.name)
    graph, maxima = marked(graph, traced.longest)
    graph, totals = marked(graph, traced.totals)
    drawn: tuple[str, ...] = ()
    if traced.flags.draws_as_one:
        graph, drawn = draw_whole(graph, draws_of_rows(traced), traced.replica.op.name)
    graph, effects = take_apart(graph)
    _bypass_identity_n(graph)
    graph = fuse_lookups(graph)
    gradients = with_forward_updates(traced, graph, found.gradients)
    refusals.add(*captured_resources(traced, graph), *written_outside(traced, graph))
    refusals.require_none()
    graph = _with_markers(graph, found)
    variables, tables = _resolve_captures(traced, graph, {g.variable: bool(g.indices) for g in found.gradients})
    moved = {name_of(tensor): name for name, tensor in found.moved.items()}
    return GraphItem(
        variables=variables,
        gradients=gradients,
        inputs=tuple(_tensor(traced, each) for each in traced.inputs),
        outputs=tuple(moved.get(name_of(output), name_of(output)) for output in traced.outputs),
        concat_outputs=traced.concat_outputs,
        **vars(traced.flags),
        examples=traced.examples.op.name,
        total=traced.total.op.name,
        replica=traced.replica.op.name if traced.replica is not None else "",
        cross_replica_sums=(*(tensor.op.name for tensor in traced.exchanged.sums), *totals),
        cross_replica_gathers=(*(tensor.op.name for tensor in traced.exchanged.gathers), *drawn),
        cross_replica_maxima=(*maxima, *(tensor.op.name for tensor in traced.exchanged.maxima)),
        targets=tuple(
            name for op in dict.fromkeys(traced.graph.control_outputs)
            if op.type not in ("ReadVariableOp", "Placeholder") for name in effects.get(op.name, (op.name,))
        ),
        tables=tables,
        joined=joined,
        graph_bytes=graph.graph_def(captured=True).SerializeToString(deterministic=True),
    )


def _bypass_identity_n(graph: Editor) -> None:
    """Let the readers of an `IdentityN` read its inputs; otherwise one such node would join all gradients."""
    several = {node.name: node for node in graph if node.op == "IdentityN"}

    def through(name: str) -> str:
        producer, output = naming.split(name)
        return through(several[producer].input[output]) if producer in several else name

    for node in graph if several else ():
        graph.change(node.name, inputs=[name if naming.is_control(name) else through(name) for name in node.input])


def _tensor(traced: Traced, placeholder: Any) -> Tensor:
    shape = None if placeholder.shape.rank is None else tuple(placeholder.shape.as_list())
    whole, part = (any(placeholder is each for each in group) for group in (traced.whole, traced.components.parts))
    return Tensor(placeholder.op.name, placeholder.dtype.name, shape, whole, part)


def _resolve_captures(
    traced: Traced, graph: Editor, sparse: Mapping[str, bool]
) -> tuple[tuple[Variable, ...], tuple[Table, ...]]:
    """Resolve what the trace captured from outside.

    A variable keeps a placeholder for its handle, and so does an input. A constant moves into the graph. A table gets
    its keys and values.
    """
    handles = {variable: name for name, variable in traced.handles.items()}
    tables: list[Table] = []
    given = {tensor.op.name for tensor in traced.inputs}
    for value, placeholder in traced.graph.captures:
        name = placeholder.op.name
        if name in traced.handles or name in given:
            continue
        if value.dtype == tf.resource:
            tables.append(_table(graph, name, value))
        else:
            graph.change(name, "Const", (), drop=list(graph[name].attr), **_content(value))
    variables = tuple(
        replace(
            source.variable, handle=handles.get(source.variable.name, ""),
            trainable=source.variable.name in sparse, is_sparse=sparse.get(source.variable.name, False),
        )
        for source in traced.sources
    )
    return variables, tuple(tables)


def _content(value: Any) -> dict[str, Any]:
    """Return the attributes of a `Const` with a tensor's value."""
    return {"dtype": value.dtype, "value": tf.make_tensor_proto(value.numpy(), value.dtype, value.shape)}


def _table(graph: Editor, name: str, handle: Any) -> Table:
    find = next(node for node in graph if name in node.input and node.op == "LookupTableFindV2")
    types = [tf.as_dtype(find.attr[key].type) for key in ("Tin", "Tout")]
    content = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=types[0], Tvalues=types[1])
    keys, values = (
        graph.add("Const", f"{name}/{label}", **_content(tensor))
        for label, tensor in zip(("keys", "values"), content, strict=True)
    )
    return Table(name, keys, values)


def _with_markers(graph: Editor, found: Cut) -> Editor:
    """Return the graph with a marker on each tensor to which a cut moved.

    The nodes that compute with the gradient behind the cut read the marker.
    """
    if not found.moved:
        return graph
    renamed = {name_of(tensor): marker for marker, tensor in found.moved.items()}
    behind = by_key((tensor.op.name, marker) for marker, tensor in found.moved.items())
    marked = graph.empty()
    for node in graph:
        inputs = list(node.input)
        if naming.UPDATE in node.attr or node.name in found.outside:
            inputs = [renamed.get(source, source) for source in inputs]
        marked.copy_captured(node, node.name, inputs)
        # Nodes stand in the order of their creation: a marker comes right behind the node that it marks.
        for marker in behind.get(node.name, ()):
            tensor = found.moved[marker]
            marked.add("Identity", marker, [name_of(tensor)], T=tensor.dtype)
    return marked
