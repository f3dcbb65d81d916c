"""GraphItem: one captured train step, the second input of every stage after capture.

Capture fills it, a strategy builder reads its variables, the kernels read its graph, and it travels to the agents as
bytes. The values here are plain and frozen; the message ``autodist.proto.GraphItem`` is only what they are stored in,
and TensorFlow is imported only by whoever asks for ``graph_def``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from google.protobuf import message as protobuf

from autodist_core.errors import CaptureError, did_you_mean
from autodist_core.proto import graphitem_pb2

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

__all__ = ["Gradient", "GraphItem", "Table", "Tensor", "Variable", "format_bytes"]

# Bytes per element and the short name for printing, by TensorFlow's name of the type; 0 for what has no size.
UPDATE = "_update"
"""Attribute of a captured node that belongs to the update: which of the step's updates it is."""
BRANCH = "_branch"
"""Attribute of an update's node that runs in one branch of a conditional: the pivots of the branches around it."""

_DTYPES: dict[str, tuple[int, str]] = {
    **{f"float{bits}": (bits // 8, f"f{bits}") for bits in (16, 32, 64)},
    **{f"int{bits}": (max(bits // 8, 1), f"i{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": (max(bits // 8, 1), f"u{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"complex{bits}": (bits // 8, f"c{bits}") for bits in (64, 128)},
    **{
        name: (1, name)
        for name in ("float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz")
    },
    **{name: (1, name) for name in ("float4_e2m1fn", "qint8", "quint8")},
    **{"qint16": (2, "qint16"), "quint16": (2, "quint16"), "qint32": (4, "qint32")},
    **{"half": (2, "f16"), "bfloat16": (2, "bf16"), "bool": (1, "bool")},
    **{"string": (0, "string"), "resource": (0, "resource"), "variant": (0, "variant")},
}
_AGGREGATIONS = ("none", "mean", "sum", "only_first_replica")
_KINDS = ("model", "optimizer", "metric", "seed")
_VARIABLE = "type.googleapis.com/autodist.proto.Variable"
_GRAPH_DEF = "type.googleapis.com/tensorflow.GraphDef"


def format_bytes(count: int) -> str:
    """A number of bytes for people.

    >>> format_bytes(512), format_bytes(392 * 1024), format_bytes(44_000_000)
    ('512 B', '392.0 KiB', '42.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def _type_and_shape(dtype: str, shape: Iterable[int | None] | None) -> str:
    axes = "..." if shape is None else ",".join("?" if size is None else str(size) for size in shape)
    return f"{_DTYPES[dtype][1]}[{axes}]"


def _check(whose: str, key: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise CaptureError(f"{whose}: unknown {key} '{value}'.{hint} Known: {', '.join(allowed)}.")


@dataclass(frozen=True)
class Variable:
    """A variable of the captured step.

    >>> kernel = Variable("dense/kernel", (784, 128), "float32")
    >>> print(kernel, kernel.byte_size)
    dense/kernel : f32[784,128] 401408
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    """Whether the step applies a gradient to it."""
    is_sparse: bool = False
    """Whether its gradient arrives as rows (IndexedSlices)."""
    aggregation: str = "none"
    """How the values of several replicas are combined: none, mean, sum or only_first_replica."""
    kind: str = "model"
    """What it belongs to: model, optimizer, metric or seed."""
    handle: str = ""
    """The placeholder in the graph that stands for it; empty when the item carries no graph."""
    part_of: str = ""
    """The variable that it is a shard of."""
    axis: int = 0
    """Of a shard: the axis that is split."""
    offset: int = 0
    """Of a shard: where it begins along that axis."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        whose = f"variable '{self.name}'"
        if not self.name or any(character.isspace() and character != " " for character in self.name):
            raise CaptureError(f"{whose}: a name is one line of text, and not empty.")
        if any(size < 0 for size in self.shape):
            raise CaptureError(f"{whose}: shape {self.shape} has a negative size; variables have static shapes.")
        if self.is_sparse and not self.shape:
            raise CaptureError(f"{whose}: a scalar has no rows, so it cannot be sparse. Leave out is_sparse.")
        _check(whose, "dtype", self.dtype, _DTYPES)
        _check(whose, "aggregation", self.aggregation, _AGGREGATIONS)
        _check(whose, "kind", self.kind, _KINDS)

    @property
    def byte_size(self) -> int:
        """Bytes that the value takes; 0 for what has no size of its own, such as strings."""
        return prod(self.shape) * self.item_size

    @property
    def item_size(self) -> int:
        """Bytes that one element takes."""
        return _DTYPES[self.dtype][0]

    @property
    def type_text(self) -> str:
        """Type and shape for printing, such as ``f32[784,128]``."""
        return _type_and_shape(self.dtype, self.shape)

    def part_name(self, index: int) -> str:
        """The name of a shard of it, such as ``dense/kernel/part_1``."""
        return f"{self.name}/part_{index}"

    def part(self, index: int, axis: int, offset: int, size: int, handle: str) -> Variable:
        """A shard of it: `size` entries along an axis, from `offset` on."""
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        return replace(
            self, name=self.part_name(index), shape=shape, handle=handle, part_of=self.name, axis=axis, offset=offset
        )

    def __str__(self) -> str:
        return f"{self.name} : {self.type_text}"


EACH, ALIKE, UNIQUE = "each", "alike", "unique"


@dataclass(frozen=True)
class Gradient:
    """A gradient on its way into the update of one variable."""

    variable: str
    occurrence: int = 0
    """Which update of the step this is: 0 for the first one."""
    values: str = ""
    """The tensor (``node:0``) of a dense gradient, or of the rows of a sparse one."""
    indices: str = ""
    """The tensor of the row indices; empty for a dense gradient."""
    weighted: bool = False
    """Whether it counts the replica's part of the batch already, because the loss did before it was differentiated."""
    rows: str = EACH
    """How the rows of several replicas become one device's: `EACH` counts, they are `ALIKE` and are summed one by one,
    or each occurs once (`UNIQUE`), on several replicas maybe."""


@dataclass(frozen=True)
class Tensor:
    """An input of the captured step: a placeholder."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    """``None`` for an axis that varies, and for a tensor whose number of axes is not known."""

    def __post_init__(self) -> None:
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
        _check(f"input '{self.name}'", "dtype", self.dtype, _DTYPES)

    @property
    def has_rows(self) -> bool:
        """Whether it has one row for each example; what has no axis is the same for all examples."""
        return self.shape is None or len(self.shape) > 0

    def __str__(self) -> str:
        return f"{self.name} : {_type_and_shape(self.dtype, self.shape)}"


@dataclass(frozen=True)
class Table:
    """An immutable lookup table that was captured with the step: three nodes of the graph."""

    handle: str
    keys: str
    values: str


@dataclass(frozen=True)
class GraphItem:
    """One captured step; equal when the content is equal.

    >>> item = GraphItem(variables=(Variable("w", (3, 2), "float32"), Variable("steps", (), "int64", trainable=False)))
    >>> list(item.trainable_var_op_to_var)
    ['w']
    >>> GraphItem.deserialize(item.serialize()) == item
    True
    >>> print(item)
    graph item: 2 variables (1 trainable, 24 B), 0 gradients, 0 inputs, 0 outputs, no graph
      w     : f32[3,2]
      steps : i64[]    not trainable
    """

    variables: tuple[Variable, ...]
    gradients: tuple[Gradient, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    concat_outputs: bool = False
    """Whether outputs hold one row per example, and are concatenated over replicas; otherwise they are averaged."""
    examples: str = ""
    """The placeholder that is fed with the number of examples of this replica."""
    total: str = ""
    """The placeholder that is fed with the number of examples of all replicas."""
    cross_replica_sums: tuple[str, ...] = ()
    """Identity nodes whose value is to be summed over the replicas."""
    targets: tuple[str, ...] = ()
    """Nodes that must run although nothing reads them."""
    tables: tuple[Table, ...] = ()
    graph_bytes: bytes = b""
    """The serialized GraphDef, nodes in the order of their creation; empty while there is none."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        names = Counter(variable.name for variable in self.variables)
        for name, times in names.items():
            if times > 1:
                raise CaptureError(
                    f"{times} variables are named '{name}'. Give each a name of its own: strategies go by it."
                )
        for gradient in self.gradients:
            if gradient.variable not in names:
                hint = did_you_mean(gradient.variable, names)
                raise CaptureError(
                    f"gradient '{gradient.values}' is for '{gradient.variable}', which is no variable here.{hint}"
                )

    @property
    def trainable_var_op_to_var(self) -> dict[str, Variable]:
        """The variables that the step trains, by name, in graph order."""
        return {variable.name: variable for variable in self.variables if variable.trainable}

    @property
    def grad_target_pairs(self) -> dict[str, str]:
        """From the name of a gradient's tensor (of its rows, when sparse) to the name of its variable."""
        return {gradient.values: gradient.variable for gradient in self.gradients if gradient.values}

    @cached_property
    def graph_def(self) -> GraphDef:
        """The captured graph, parsed on first use; shared by all who ask, so copy it before changing it."""
        from tensorflow.core.framework.graph_pb2 import GraphDef

        return GraphDef.FromString(self.graph_bytes)

    @property
    def info(self) -> graphitem_pb2.GraphItem.Info:
        """Variables and tables as the message's ``info`` holds them."""
        info = graphitem_pb2.GraphItem.Info(table_initializers=[table.handle for table in self.tables])
        for variable in self.variables:
            packed = graphitem_pb2.Variable(**vars(variable)).SerializeToString(deterministic=True)
            info.variables.add(type_url=_VARIABLE, value=packed)
        return info

    def serialize(self) -> bytes:
        """The item as bytes; equal items give equal bytes."""
        message = graphitem_pb2.GraphItem(
            grad_target_pairs=self.grad_target_pairs,
            info=self.info,
            gradients=[graphitem_pb2.Gradient(**vars(gradient)) for gradient in self.gradients],
            inputs=[
                graphitem_pb2.Tensor(
                    name=tensor.name,
                    dtype=tensor.dtype,
                    shape=[-1 if size is None else size for size in tensor.shape or ()],
                    unknown_rank=tensor.shape is None,
                )
                for tensor in self.inputs
            ],
            tables=[graphitem_pb2.Table(**vars(table)) for table in self.tables],
            **{name: getattr(self, name) for name in _PLAIN},
        )
        if self.graph_bytes:
            message.graph_def.type_url = _GRAPH_DEF
            message.graph_def.value = self.graph_bytes
        return message.SerializeToString(deterministic=True)

    @classmethod
    def deserialize(cls, data: bytes) -> GraphItem:
        """The item that :meth:`serialize` gave ``data`` for."""
        try:
            message = graphitem_pb2.GraphItem.FromString(data)
            variables = [graphitem_pb2.Variable.FromString(packed.value) for packed in message.info.variables]
        except protobuf.DecodeError as error:
            raise CaptureError(f"{len(data)} bytes are not a serialized GraphItem ({error}).") from None
        plain: dict[str, Any] = {}
        for name in _PLAIN:
            value = getattr(message, name)
            plain[name] = value if isinstance(value, str | bool) else tuple(value)
        return cls(
            variables=tuple(
                Variable(**{**_fields(variable), "shape": tuple(variable.shape)}) for variable in variables
            ),
            gradients=tuple(Gradient(**_fields(gradient)) for gradient in message.gradients),
            inputs=tuple(
                Tensor(
                    tensor.name,
                    tensor.dtype,
                    None if tensor.unknown_rank else tuple(None if size < 0 else size for size in tensor.shape),
                )
                for tensor in message.inputs
            ),
            tables=tuple(Table(**_fields(table)) for table in message.tables),
            graph_bytes=message.graph_def.value,
            **plain,
        )

    def __str__(self) -> str:
        trainable = self.trainable_var_op_to_var.values()
        size = format_bytes(sum(variable.byte_size for variable in trainable))
        counts = ", ".join(f"{len(getattr(self, name))} {name}" for name in ("gradients", "inputs", "outputs"))
        graph = f"a graph of {format_bytes(len(self.graph_bytes))}" if self.graph_bytes else "no graph"
        lines = [f"graph item: {len(self.variables)} variables ({len(trainable)} trainable, {size}), {counts}, {graph}"]
        names = max((len(variable.name) for variable in self.variables), default=0)
        types = max((len(variable.type_text) for variable in self.variables), default=0)
        for variable in self.variables:
            marks = [] if variable.trainable else ["not trainable"]
            marks += ["sparse"] if variable.is_sparse else []
            marks += [variable.kind] if variable.kind != "model" else []
            marks += [f"aggregation={variable.aggregation}"] if variable.aggregation != "none" else []
            lines.append(f"  {variable.name:{names}} : {variable.type_text:{types}} {', '.join(marks)}".rstrip())
        lines += [f"  input {tensor}" for tensor in self.inputs]
        return "\n".join(lines)


# The fields that are the same in the message and in the value.
_PLAIN = ("outputs", "concat_outputs", "examples", "total", "cross_replica_sums", "targets")


def _fields(message: protobuf.Message) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
