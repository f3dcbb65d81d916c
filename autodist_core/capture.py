"""From a traced TensorFlow function and its (gradient, variable) pairs to a GraphItem.

The trace must have put a `tf.identity` on every gradient on its way into the optimizer; these markers are where the
captured step is cut in two. All that created nodes from `apply` on belongs to the update, and so does what a custom
step does to gradients between the tape and `apply` unless it is linear: there the cut moves before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.graph_item import Gradient, GraphItem, Table, Tensor, Variable

_TAPE = "gradient_tape/"
# Operations that commute with a sum over replicas when everything they read does.
_LINEAR = {"AddN", "Identity", "IdentityN", "ConcatV2", "Reshape", "Cast", "Add", "AddV2", "Sub", "Neg",
           "Squeeze", "ExpandDims", "UnsortedSegmentSum", "Pack"}
# Inputs of these that say where, not how much.
_POSITIONS = {"ConcatV2": (-1,), "Reshape": (1,), "ExpandDims": (1,), "UnsortedSegmentSum": (1, 2)}
_SCALING = {"Mul": (0, 1), "RealDiv": (0,), "DivNoNan": (0,)}
_LOOKING = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
_MUTATING_TABLES = {"LookupTableInsertV2", "LookupTableImportV2", "LookupTableRemoveV2"}


@dataclass(frozen=True)
class Marked:
    """A gradient on its way into an optimizer: the outputs of its markers and the variable it belongs to."""

    variable: str
    occurrence: int
    values: Any
    indices: Any = None
    weighted: bool = False


@dataclass(frozen=True)
class Source:
    """A variable that the trace may have captured, and the handle by which the trace knows it."""

    variable: Variable
    handle: Any


@dataclass(frozen=True)
class Traced:
    """What a front hands over: one flat function graph and what it knows about it."""

    graph: Any
    sources: Sequence[Source]
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    examples: Any
    total: Any
    gradients: Sequence[Marked] = ()
    updates: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    sums: Sequence[Any] = ()
    concat_outputs: bool = False


def capture(traced: Traced) -> GraphItem:
    """Make the GraphItem of a traced step, or raise a CaptureError that says everything that is in the way."""
    operations = traced.graph.get_operations()
    marks = {
        operation.name: occurrence
        for occurrence, (first, last) in traced.updates.items() for operation in operations[first:last]
    }
    gradients, moved = _cut(traced, marks)
    graph_def = traced.graph.as_graph_def(add_shapes=False)
    for node in graph_def.node:
        if node.name in marks:
            node.attr["_update"].i = marks[node.name]
    _bypass_identity_n(graph_def)
    _fuse_lookups(graph_def)
    _add_markers(graph_def, moved)
    variables, tables = _resolve_captures(traced, graph_def, {g.variable: bool(g.indices) for g in gradients})
    return GraphItem(
        variables=variables,
        gradients=tuple(gradients),
        inputs=tuple(_tensor(placeholder) for placeholder in traced.inputs),
        outputs=tuple(_name(output) for output in traced.outputs),
        concat_outputs=traced.concat_outputs,
        examples=traced.examples.op.name,
        total=traced.total.op.name,
        cross_replica_sums=tuple(tensor.op.name for tensor in traced.sums),
        targets=tuple(
            op.name for op in dict.fromkeys(traced.graph.control_outputs)
            if op.type not in ("ReadVariableOp", "Placeholder")
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


def _fuse_lookups(graph_def: Any) -> None:
    """Let a lookup take its rows from the variable itself, at the time at which the captured step read the variable.

    TensorFlow copies a variable that is written by rows whenever it is read whole, once per replica and step.
    """
    position = {node.name: index for index, node in enumerate(graph_def.node)}

    def producer(name: str) -> Any:
        node = graph_def.node[position[name.partition(":")[0]]]
        return producer(node.input[0]) if node.op == "Identity" else node

    for index, node in enumerate(graph_def.node):
        if node.op != "GatherV2" or node.attr["batch_dims"].i:
            continue
        read, axis = producer(node.input[0]), producer(node.input[2])
        if read.op != "ReadVariableOp" or axis.op != "Const" or tf.make_ndarray(axis.attr["value"].tensor).item() != 0:
            continue
        between = graph_def.node[position[read.name] + 1 : index]
        if any(read.input[0] in other.input and other.op not in _LOOKING for other in between):
            continue
        types = {"dtype": node.attr["Tparams"].type, "Tindices": node.attr["Tindices"].type}
        controls = [name for name in [*node.input, *read.input] if name.startswith("^")]
        node.op = "ResourceGather"
        node.input[:] = [read.input[0], node.input[1], *dict.fromkeys(controls)]
        for key in ("Tparams", "Taxis"):
            del node.attr[key]
        for key, value in types.items():
            node.attr[key].type = value
        node.attr["validate_indices"].b = True


def _name(tensor: Any) -> str:
    return tensor.name.removesuffix(":0")


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


def _add_markers(graph_def: Any, moved: Mapping[str, Any]) -> None:
    """Put a marker on each tensor at which a cut moved, read by the update in the tensor's place."""
    behind: dict[str, list[Any]] = {tensor.op.name: [] for tensor in moved.values()}
    renamed = {}
    for name, tensor in moved.items():
        marker = graph_def.node.add(name=name, op="Identity", input=[_name(tensor)])
        marker.attr["T"].type = tensor.dtype.as_datatype_enum
        renamed[_name(tensor)] = name
        behind[tensor.op.name].append(type(marker).FromString(marker.SerializeToString()))
    ordered = []
    for node in graph_def.node:
        if node.name in moved:
            continue
        if "_update" in node.attr:
            node.input[:] = [renamed.get(source, source) for source in node.input]
        # Nodes stand in creation order: a marker belongs right behind what it marks.
        ordered += [type(node).FromString(node.SerializeToString()), *behind.get(node.name, ())]
    del graph_def.node[:]
    graph_def.node.extend(ordered)


def _cut(traced: Traced, marks: dict[str, int]) -> tuple[list[Gradient], dict[str, Any]]:
    """Where each gradient is cut, and the tensors behind which a cut moved, by the name of the marker they need.

    Adds what lies between a moved cut and `apply` to the update.
    """
    found: list[Gradient] = []
    moved: dict[str, Any] = {}
    has_tape = _TapeAncestors()
    for occurrence in sorted(traced.updates):
        marked = [gradient for gradient in traced.gradients if gradient.occurrence == occurrence]
        names = {id(tensor): _name(tensor) for gradient in marked for tensor in _parts(gradient)}
        taped = [gradient for gradient in marked if has_tape(gradient.values.op)]
        if not all(_is_linear(has_tape, tensor.op.inputs[0]) for gradient in taped for tensor in _parts(gradient)):
            cuts: dict[str, Any] = {}
            for gradient in taped:
                for tensor in _parts(gradient):
                    names[id(tensor)] = f"gradient/{occurrence}/{len(cuts)}"
                    cuts[names[id(tensor)]] = _raw_gradient(has_tape, gradient, tensor)
            marks.update(dict.fromkeys(_between(taped, cuts.values(), has_tape), occurrence))
            moved.update(cuts)
        for gradient in marked:
            values, indices = names[id(gradient.values)], names.get(id(gradient.indices), "")
            # What no tape made (zeros for a variable that the loss does not reach) counts as a mean.
            weighted = gradient.weighted and has_tape(gradient.values.op)
            found.append(Gradient(gradient.variable, occurrence, values, indices, weighted))
    return found, moved


def _parts(gradient: Marked) -> list[Any]:
    return [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]


class _TapeAncestors:
    """Whether a tensor was computed from a tape's gradients."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def __call__(self, operation: Any) -> bool:
        waiting = [operation]
        while waiting:
            current = waiting[-1]
            if current.name in self._known:
                waiting.pop()
            elif _TAPE in current.name:
                self._known[current.name] = True
            else:
                unknown = [t.op for t in current.inputs if t.op.name not in self._known]
                if unknown:
                    waiting.extend(unknown)
                else:
                    self._known[current.name] = any(self._known[t.op.name] for t in current.inputs)
        return self._known[operation.name]


def _is_linear(has_tape: _TapeAncestors, tensor: Any) -> bool:
    """Whether a gradient is as the tape made it, up to operations that commute with a sum over replicas."""
    operation = tensor.op
    if _TAPE in operation.name:
        return True
    inputs = list(operation.inputs)
    if operation.type in _LINEAR:
        skipped = {inputs[position].name for position in _POSITIONS.get(operation.type, ())}
        return bool(inputs) and all(_is_linear(has_tape, source) for source in inputs if source.name not in skipped)
    if operation.type in _SCALING:
        tainted = [position for position, source in enumerate(inputs) if has_tape(source.op)]
        return (
            len(tainted) == 1
            and tainted[0] in _SCALING[operation.type]
            and _is_linear(has_tape, inputs[tainted[0]])
            and _is_same_everywhere(inputs[1 - tainted[0]].op)
        )
    return False


def _is_same_everywhere(operation: Any) -> bool:
    """Whether a value is computed from constants alone, and so is the same on every replica."""
    if operation.type == "Placeholder" or operation.op_def.is_stateful:
        return False
    return all(_is_same_everywhere(source.op) for source in operation.inputs)


def _raw_gradient(has_tape: _TapeAncestors, gradient: Marked, marker: Any) -> Any:
    """Follow a transformed gradient back, along tensors of its own shape, to the one tensor that the tape made."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    waiting = [marker.op.inputs[0]]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        alike = {
            source.name: source for source in tensor.op.inputs
            if source.dtype == tensor.dtype and source.shape.rank == tensor.shape.rank
            and source.shape.is_compatible_with(tensor.shape) and has_tape(source.op)
        }
        if _TAPE in tensor.op.name or (len(alike) != 1 and _is_linear(has_tape, tensor)):
            found[tensor.name] = tensor
        else:
            waiting.extend(alike.values())
    if len(found) != 1:
        operation = marker.op.inputs[0].op
        raise CaptureError(
            f"the gradient of {gradient.variable!r} is transformed by {operation.name!r} ({operation.type}) between "
            "the tape and optimizer.apply, and it is not clear where it comes from. Let the optimizer clip (clipnorm, "
            "clipvalue, global_clipnorm), or override its update, so that it acts on the reduced gradient."
        )
    return next(iter(found.values()))


def _between(marked: Sequence[Marked], cuts: Iterable[Any], has_tape: _TapeAncestors) -> list[str]:
    """The operations between the cut gradients and the markers, markers included."""
    stops = {tensor.name for tensor in cuts}
    waiting = [tensor.op for gradient in marked for tensor in _parts(gradient)]
    seen: dict[str, Any] = {}
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        if _TAPE in operation.name:
            raise CaptureError(
                f"gradients are transformed before optimizer.apply by something that reads {operation.name!r}, which "
                "is not the gradient of a variable. It would differ between replicas; move it into the optimizer."
            )
        seen[operation.name] = operation
        waiting.extend(
            source.op for source in operation.inputs if source.name not in stops and has_tape(source.op)
        )
    return list(seen)

