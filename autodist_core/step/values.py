"""The parts of a GraphItem as frozen values: variables, gradients, inputs and lookup tables.

Capture makes the values, and every later stage reads them. This module imports neither TensorFlow nor protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from autodist_core.errors import CaptureError, did_you_mean

# Bytes per element and the short name for printing, by TensorFlow's name of the type. A string has 0 bytes: its size
# is not fixed.
_DTYPES: dict[str, tuple[int, str]] = {
    **{f"float{bits}": (bits // 8, f"f{bits}") for bits in (16, 32, 64)},
    **{f"int{bits}": (max(bits // 8, 1), f"i{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": (max(bits // 8, 1), f"u{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"complex{bits}": (bits // 8, f"c{bits}") for bits in (64, 128)},
    **{f"float8_{kind}": (1, f"float8_{kind}") for kind in ("e5m2", "e4m3fn", "e4m3b11fnuz", "e4m3fnuz", "e5m2fnuz")},
    **{name: (1, name) for name in ("float4_e2m1fn", "qint8", "quint8")},
    **{"qint16": (2, "qint16"), "quint16": (2, "quint16"), "qint32": (4, "qint32")},
    **{"half": (2, "f16"), "bfloat16": (2, "bf16"), "bool": (1, "bool")},
    **{"string": (0, "string"), "resource": (0, "resource"), "variant": (0, "variant")},
}
_AGGREGATIONS = ("none", "mean", "sum", "max", "min", "only_first_replica")
_KINDS = ("model", "optimizer", "metric", "seed")


def format_bytes(count: int) -> str:
    """Return a number of bytes as text with a unit.

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
    """Whether the step applies a gradient to the variable."""
    is_sparse: bool = False
    """Whether the gradient consists of rows (IndexedSlices)."""
    aggregation: str = "none"
    """How the values of several replicas are combined: none, mean, sum, max, min or only_first_replica."""
    kind: str = "model"
    """The owner of the variable: model, optimizer, metric or seed."""
    handle: str = ""
    """The placeholder of the variable in the graph; empty if the item has no graph."""
    part_of: str = ""
    """For a shard: the name of the variable that is partitioned."""
    axis: int = 0
    """For a shard: the axis that is split."""
    offset: int = 0
    """For a shard: the position along that axis at which the shard begins."""

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

    def entries_of(self, value: Any) -> Any:
        """The entries of a value of the whole variable that a shard has; for a whole variable, the value.

        >>> import numpy as np
        >>> Variable("w/part_1", (1, 2), "float32", part_of="w", axis=1, offset=2).entries_of(np.ones((1, 4))).tolist()
        [[1.0, 1.0]]
        """
        if not self.part_of:
            return value
        entries = slice(self.offset, self.offset + self.shape[self.axis])
        return value[(slice(None),) * self.axis + (entries,)]

    @property
    def byte_size(self) -> int:
        """The bytes of the value; 0 for a type without a fixed size, such as string."""
        return prod(self.shape) * self.item_size

    @property
    def item_size(self) -> int:
        """The bytes of one element."""
        return _DTYPES[self.dtype][0]

    @property
    def type_text(self) -> str:
        """Type and shape for printing, such as ``f32[784,128]``."""
        return _type_and_shape(self.dtype, self.shape)

    @property
    def combined(self) -> str:
        """How the replicas' values become one after a step: the `sum`, `mean`, `max` or `min` of them, or the `first`.

        >>> Variable("mean", (), "complex64").combined, Variable("count", (), "int64").combined
        ('mean', 'first')
        """
        if self.aggregation == "none":
            return "mean" if self.dtype.startswith(("float", "bfloat", "complex")) else "first"
        return "first" if self.aggregation == "only_first_replica" else self.aggregation

    def part_name(self, index: int) -> str:
        """Return the name of a shard of the variable.

        >>> Variable("dense/kernel", (4, 3), "float32").part_name(1)
        'dense/kernel/part_1'
        """
        return f"{self.name}/part_{index}"

    def part(self, index: int, axis: int, offset: int, size: int, handle: str) -> Variable:
        """Return a shard of the variable: `size` entries along an axis, from `offset` on.

        >>> print(Variable("dense/kernel", (4, 3), "float32").part(1, axis=0, offset=2, size=2, handle="").shape)
        (2, 3)
        """
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        return replace(
            self, name=self.part_name(index), shape=shape, handle=handle, part_of=self.name, axis=axis, offset=offset
        )

    def __str__(self) -> str:
        return f"{self.name} : {self.type_text}"


EACH, ALIKE, UNIQUE = "each", "alike", "unique"
"""The values of `Gradient.rows`: how the rows of several replicas' sparse gradients are combined."""


@dataclass(frozen=True)
class Gradient:
    """A gradient that the step applies to one variable.

    >>> Gradient("dense/kernel", values="gradient:0").indices == ""
    True
    """

    variable: str
    occurrence: int = 0
    """The number of the update within the step: 0 for the first update."""
    values: str = ""
    """The tensor (``node:0``) of a dense gradient, or of the rows of a sparse one."""
    indices: str = ""
    """The tensor of the row indices; empty for a dense gradient."""
    weighted: bool = False
    """Whether the gradient is weighted already by the replica's part of the batch, because the loss was weighted."""
    rows: str = EACH
    """For a sparse gradient, how the rows of all replicas are combined.

    `EACH`: all rows are concatenated. `ALIKE`: all replicas have the same indices, and row i of one replica is added to
    row i of the others. `UNIQUE`: no replica has an index twice, and rows of the same index are added.
    """
    alike: bool = False
    """Whether all replicas have the same gradient: the first replica's counts, and those of the others do not."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The tensors of the gradient."""
        return tuple(filter(None, (self.values, self.indices)))

    @property
    def key(self) -> tuple[str, int]:
        """The variable, and the number of the update: no other gradient of the step has both."""
        return self.variable, self.occurrence


@dataclass(frozen=True)
class Tensor:
    """An input of the captured step: a placeholder.

    >>> print(Tensor("x", "float32", (None, 7)))
    x : f32[?,7]
    >>> Tensor("x", "float32", (None, 7)).has_rows, Tensor("rate", "float32", ()).has_rows
    (True, False)
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    """The sizes of the axes, ``None`` for an axis that varies; or ``None`` if the number of axes is unknown."""
    whole: bool = False
    """Whether every replica gets the whole value, although the value has axes."""
    part: bool = False
    """Whether the input is a component of a ragged or sparse tensor: what a replica gets of it, its rows decide."""

    def __post_init__(self) -> None:
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
        _check(f"input '{self.name}'", "dtype", self.dtype, _DTYPES)

    @property
    def has_rows(self) -> bool:
        """Whether the input is split by rows. A scalar is the same for all examples."""
        return not self.whole and (self.shape is None or len(self.shape) > 0)

    def __str__(self) -> str:
        return f"{self.name} : {_type_and_shape(self.dtype, self.shape)}"


@dataclass(frozen=True)
class Joined:
    """How the replicas' values of a tensor become the whole batch's: same, sum, mean, max, min, rows or each.

    `rows` are put one behind the other along `axis`. `each` is not joined: the step returns a value of every replica.

    >>> Joined("Max", "max").how
    'max'
    """

    tensor: str
    how: str
    axis: int = 0


@dataclass(frozen=True)
class Table:
    """An immutable lookup table that was captured with the step, as the names of three nodes of the graph.

    >>> Table(handle="table", keys="table/keys", values="table/values").keys
    'table/keys'
    """

    handle: str
    keys: str
    values: str
