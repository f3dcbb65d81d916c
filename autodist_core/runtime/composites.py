"""Ragged and sparse tensors of a batch: they travel as their components, and are split by rows.

In: a `tf.RaggedTensor` or `tf.SparseTensor`, or one's type. Out: one array for each component, and the rule by which
the component is cut for some rows of the batch. For a ragged tensor [[1, 2], [3]] and a sparse one::

    ragged    flat values [1, 2, 3]              row 1: [3]
              row splits  [0, 2, 3]              row 1: [0, 1]
    sparse    indices     [[0, 4], [1, 2]]       row 1: [[0, 2]]
              values      [7, 8]                 row 1: [8]
              dense shape [2, 5]                 row 1: [1, 5]

So each replica has the tensor that one device would make of these rows. `parts_of_result` and `result_of` do the same
for results: their parts can be put one behind the other over the replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.traced import Components

COMPOSITE = (tf.RaggedTensor, tf.SparseTensor)
_SPECS = (tf.RaggedTensorSpec, tf.SparseTensorSpec)


def spec_of(tensor: Any) -> Any:
    """The type of a tensor of a batch. A ragged or sparse tensor has an open number of rows.

    >>> spec_of(tf.ragged.constant([[1], [2, 3]]))
    RaggedTensorSpec(TensorShape([None, None]), tf.int32, 1, tf.int64)
    >>> spec_of(tf.zeros([2, 3]))
    TensorSpec(shape=(2, 3), dtype=tf.float32, name=None)
    """
    if isinstance(tensor, tf.RaggedTensor):
        shape = [None, *tensor.shape[1:]]
        return tf.RaggedTensorSpec(shape, tensor.dtype, tensor.ragged_rank, tensor.row_splits.dtype)
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensorSpec([None, *tensor.shape[1:]], tensor.dtype)
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def kind_of(spec: Any) -> tuple[Any, ...]:
    """What all tensors have in common that one captured step can take, apart from the sizes of their axes.

    >>> kind_of(tf.SparseTensorSpec([None, 3], tf.float64))
    ('SparseTensorSpec', tf.float64, 2)
    """
    more = (spec.ragged_rank, spec.row_splits_dtype) if isinstance(spec, tf.RaggedTensorSpec) else ()
    return type(spec).__name__, spec.dtype, spec.shape.rank, *more


def is_composite(spec: Any) -> bool:
    """Whether this is the type of ragged or sparse tensors.

    >>> is_composite(tf.SparseTensorSpec([None, 3])), is_composite(tf.TensorSpec([None, 3]))
    (True, False)
    """
    return isinstance(spec, _SPECS)


def component_specs(spec: Any) -> list[tf.TensorSpec]:
    """The types of a tensor's components; of a dense tensor, its own.

    >>> [part.shape.as_list() for part in component_specs(tf.SparseTensorSpec([None, 3]))]
    [[None, 2], [None], [2]]
    """
    return list(tf.nest.flatten(spec, expand_composites=True))


def signature_of(specs: Sequence[Any]) -> list[tf.TensorSpec]:
    """What a step is traced for that takes tensors of these types: their components, and three numbers.

    These are the numbers of examples of the replica and of all replicas, and the replica's own number.

    >>> [spec.name for spec in signature_of([tf.TensorSpec([None, 3]), tf.RaggedTensorSpec([None, None])])]
    ['input_0', 'input_1', 'input_2', 'examples', 'total', 'replica']
    """
    flat = [part for spec in specs for part in component_specs(spec)]
    named = [tf.TensorSpec(spec.shape, spec.dtype, name=f"input_{index}") for index, spec in enumerate(flat)]
    counts = [tf.TensorSpec((), tf.float64, name) for name in ("examples", "total")]
    return [*named, *counts, tf.TensorSpec((), tf.int32, "replica")]


def grouped(specs: Sequence[Any], components: Iterable[Any]) -> list[list[Any]]:
    """The components of each tensor of these types, of all components in order.

    >>> grouped([tf.RaggedTensorSpec([None, None]), tf.TensorSpec([])], ["values", "row splits", "number", "examples"])
    [['values', 'row splits'], ['number']]
    """
    remaining = iter(components)
    return [[next(remaining) for _ in component_specs(spec)] for spec in specs]


def components_of(specs: Sequence[Any], components: Iterable[Any]) -> Components:
    """The components of ragged and sparse tensors among all.

    >>> components_of([tf.RaggedTensorSpec([None, None]), tf.TensorSpec([])], ["values", "row splits", "number"])
    Components(parts=['values', 'row splits'], flat_values=['values'], row_splits=['row splits'])
    """
    of_each = zip(specs, grouped(specs, components), strict=True)
    composite = [(isinstance(spec, tf.RaggedTensorSpec), parts) for spec, parts in of_each if is_composite(spec)]
    return Components(
        parts=[part for _, parts in composite for part in parts],
        row_splits=[part for is_ragged, parts in composite if is_ragged for part in parts[1:2]],
        flat_values=[parts[0 if is_ragged else 1] for is_ragged, parts in composite],
    )


def packed(specs: Sequence[Any], components: Sequence[Any]) -> list[Any]:
    """The tensors of these types, made of all their components.

    >>> ragged = tf.RaggedTensorSpec([None, None], tf.int32, 1)
    >>> packed([ragged, tf.TensorSpec([])], [tf.constant([1, 2, 3]), tf.constant([0, 2, 3], tf.int64), 0.5])
    [<tf.RaggedTensor [[1, 2], [3]]>, 0.5]
    """
    return [
        tf.nest.pack_sequence_as(spec, parts, expand_composites=True) if is_composite(spec) else parts[0]
        for spec, parts in zip(specs, grouped(specs, components), strict=True)
    ]


def own_array(tensor: Any) -> Any:
    """A dense tensor or an array, copied to an array as it travels to other processes.

    >>> own_array(tf.constant([1, 2]))
    array([1, 2], dtype=int32)
    """
    return tensor.numpy() if tf.is_tensor(tensor) else np.array(tensor)


def arrays_of(tensor: Any) -> tuple[Any, ...]:
    """The parts of a tensor of a batch: a dense tensor itself, a `Component` for each component of another.

    >>> [part[1:2].numpy().tolist() for part in arrays_of(tf.ragged.constant([[1, 2], [3]]))]
    [[3], [0, 1]]
    """
    if not isinstance(tensor, COMPOSITE):
        return (tensor,)
    values = tf.nest.flatten(tensor, expand_composites=True)
    rows = (_Ragged if isinstance(tensor, tf.RaggedTensor) else _Sparse)(tuple(values))
    return tuple(Component(rows, index) for index in range(len(values)))


@dataclass(frozen=True, eq=False)
class Component:
    """One component of a ragged or sparse tensor. A slice of it, with both ends, is the component for these rows.

    >>> values, splits = arrays_of(tf.ragged.constant([[1, 2], [3]]))
    >>> values[1:2].numpy().tolist(), values.shape
    ([3], (2,))
    """

    rows: _Ragged | _Sparse
    index: int

    @property
    def shape(self) -> tuple[int]:
        """The number of rows of the tensor."""
        return (self.rows.count,)

    @property
    def nbytes(self) -> int:
        """The bytes of the component."""
        return int(self.rows.components[self.index].nbytes)

    def __getitem__(self, rows: slice) -> Any:
        return self.rows.cut(self.index, rows.start, rows.stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.rows.components[self.index], dtype)

    def copied(self) -> Component:
        """The same in memory of its own."""
        return Component(replace(self.rows, components=tuple(map(own_array, self.rows.components))), self.index)


@dataclass(frozen=True, eq=False)
class _Ragged:
    """The components of a ragged tensor, and how they are cut: one component of the rows from `start` to `stop`."""

    components: tuple[Any, ...]

    @property
    def count(self) -> int:
        return len(self.components[1]) - 1

    def cut(self, index: int, start: Any, stop: Any) -> Any:
        flat, *levels = self.components
        for level, splits in enumerate(levels, 1):
            if level == index:
                return splits[start : stop + 1] - splits[start]
            start, stop = splits[start], splits[stop]
        return flat[start:stop]


@dataclass(frozen=True, eq=False)
class _Sparse:
    """The same of a sparse tensor."""

    components: tuple[Any, ...]

    @property
    def count(self) -> int:
        return int(self.components[2][0])

    def cut(self, index: int, start: Any, stop: Any) -> Any:
        indices, values, dense_shape = self.components
        if index == 2:
            return tf.concat([[stop - start], dense_shape[1:]], 0)
        # The entries need not be in the order of their rows.
        row = indices[:, 0]
        inside = tf.where((row >= start) & (row < stop))[:, 0]
        if index == 1:
            return tf.gather(values, inside)
        found = tf.gather(indices, inside)
        return tf.concat([found[:, :1] - start, found[:, 1:]], 1)


def parts_of_result(value: Any) -> list[Any]:
    """The tensors of a result of a step. The replicas' tensors, one behind the other, are those of the whole batch.

    >>> [part.numpy().tolist() for part in parts_of_result(tf.ragged.constant([[1, 2], [3]]))]
    [[1, 2, 3], [2, 1]]
    """
    if isinstance(value, tf.RaggedTensor):
        return [value.flat_values, *value.nested_row_lengths()]
    if isinstance(value, tf.SparseTensor):
        ordered = tf.sparse.reorder(value)
        row, count = ordered.indices[:, 0], ordered.dense_shape[0]
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(row), row, count)
        return [ordered.values, ordered.indices[:, 1:], lengths, ordered.dense_shape[tf.newaxis, 1:]]
    return [value]


def result_of(spec: Any, parts: Sequence[Any]) -> Any:
    """The result of this type for the whole batch, made of the replicas' parts, one behind the other.

    >>> result_of(tf.RaggedTensorSpec([None, None], tf.int32, 1), [[1, 2, 3], [2, 1]])
    <tf.RaggedTensor [[1, 2], [3]]>
    """
    if isinstance(spec, tf.RaggedTensorSpec):
        values, *lengths = parts
        splits = [tf.concat([[0], tf.cumsum(tf.cast(each, spec.row_splits_dtype))], 0) for each in lengths]
        return packed([spec], [tf.convert_to_tensor(values, spec.dtype), *splits])[0]
    if isinstance(spec, tf.SparseTensorSpec):
        values, others, lengths, shapes = map(tf.convert_to_tensor, parts)
        count = tf.size(lengths, tf.int64)
        indices = tf.concat([tf.repeat(tf.range(count), lengths)[:, tf.newaxis], others], 1)
        return tf.SparseTensor(indices, values, tf.concat([[count], tf.reduce_max(shapes, 0)], 0))
    return parts[0]
