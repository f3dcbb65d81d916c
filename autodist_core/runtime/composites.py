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

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

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


def are_values(spec: Any) -> list[bool]:
    """Whether each component of a ragged or sparse tensor is its flat values. The others say where these are.

    >>> are_values(tf.RaggedTensorSpec([None, None], tf.int32, 1)), are_values(tf.SparseTensorSpec([None, 3]))
    ([True, False], [False, True, False])
    >>> are_values(tf.TensorSpec([None, 3]))
    [False]
    """
    at = {tf.RaggedTensorSpec: 0, tf.SparseTensorSpec: 1}.get(type(spec))
    return [index == at for index in range(len(component_specs(spec)))]


def are_row_splits(spec: Any) -> list[bool]:
    """Whether each component of a tensor says where the rows of the examples begin; of a ragged tensor, one does.

    >>> are_row_splits(tf.RaggedTensorSpec([None, None, None], tf.int32, 2))
    [False, True, False]
    """
    return [isinstance(spec, tf.RaggedTensorSpec) and index == 1 for index in range(len(component_specs(spec)))]


def packed(specs: Sequence[Any], components: Sequence[Any]) -> list[Any]:
    """The tensors of these types, made of all their components.

    >>> ragged = tf.RaggedTensorSpec([None, None], tf.int32, 1)
    >>> packed([ragged, tf.TensorSpec([])], [tf.constant([1, 2, 3]), tf.constant([0, 2, 3], tf.int64), 0.5])
    [<tf.RaggedTensor [[1, 2], [3]]>, 0.5]
    """
    remaining = iter(components)
    found = []
    for spec in specs:
        parts = [next(remaining) for _ in component_specs(spec)]
        found.append(tf.nest.pack_sequence_as(spec, parts, expand_composites=True) if is_composite(spec) else parts[0])
    return found


def array_of(tensor: Any) -> Any:
    """A dense tensor as an array, without a copy if numpy can share the memory.

    >>> array_of(tf.constant([1, 2]))
    array([1, 2], dtype=int32)
    """
    if tensor.dtype in (tf.string, tf.bfloat16) or not tensor.shape.rank:
        return tensor.numpy()
    return np.asarray(memoryview(tensor))


def arrays_of(tensor: Any) -> tuple[Any, ...]:
    """The arrays of a tensor of a batch: one for a dense tensor, a `Component` for each component of another.

    >>> [part[1:2].tolist() for part in arrays_of(tf.ragged.constant([[1, 2], [3]]))]
    [[3], [0, 1]]
    """
    if not isinstance(tensor, COMPOSITE):
        return (array_of(tensor),)
    values = [array_of(part) for part in tf.nest.flatten(tensor, expand_composites=True)]
    cut = _Ragged(values[0], tuple(values[1:])) if isinstance(tensor, tf.RaggedTensor) else _Sparse(*values)
    return tuple(Component(cut, index) for index in range(len(values)))


class _Rows(ABC):
    """The components of one tensor, and how they are cut."""

    @property
    @abstractmethod
    def components(self) -> tuple[Any, ...]:
        """All components."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of rows."""

    @abstractmethod
    def cut(self, index: int, start: int, stop: int) -> Any:
        """One component of the rows from `start` to `stop`."""

    @abstractmethod
    def copied(self) -> _Rows:
        """The same in memory of its own."""


@dataclass(frozen=True, eq=False)
class Component:
    """One component of a ragged or sparse tensor. A slice of it is the component for these rows of the batch.

    >>> values, splits = arrays_of(tf.ragged.constant([[1, 2], [3]]))
    >>> values[1:2].tolist(), values.shape, values.nbytes
    ([3], (2,), 12)
    """

    rows: _Rows
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
        start, stop, _ = rows.indices(self.rows.count)
        return self.rows.cut(self.index, start, stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        del copy
        return np.asarray(self.rows.components[self.index], dtype)

    def copied(self) -> Component:
        """The same in memory of its own."""
        return Component(self.rows.copied(), self.index)


@dataclass(frozen=True, eq=False)
class _Ragged(_Rows):
    flat: Any
    splits: tuple[Any, ...]

    @property
    def components(self) -> tuple[Any, ...]:
        return self.flat, *self.splits

    @property
    def count(self) -> int:
        return len(self.splits[0]) - 1

    def cut(self, index: int, start: int, stop: int) -> Any:
        for level, splits in enumerate(self.splits, 1):
            if level == index:
                return splits[start : stop + 1] - splits[start]
            start, stop = int(splits[start]), int(splits[stop])
        return self.flat[start:stop]

    def copied(self) -> _Ragged:
        return _Ragged(np.array(self.flat), tuple(map(np.array, self.splits)))


@dataclass(frozen=True, eq=False)
class _Sparse(_Rows):
    indices: Any
    values: Any
    dense_shape: Any

    @property
    def components(self) -> tuple[Any, ...]:
        return self.indices, self.values, self.dense_shape

    @property
    def count(self) -> int:
        return int(self.dense_shape[0])

    def cut(self, index: int, start: int, stop: int) -> Any:
        if index == 2:
            return np.concatenate([[stop - start], self.dense_shape[1:]])
        # The entries need not be in the order of their rows.
        row = self.indices[:, 0]
        inside = np.flatnonzero((row >= start) & (row < stop))
        if index == 1:
            return self.values[inside]
        found = self.indices[inside]
        found[:, 0] -= start
        return found

    def copied(self) -> _Sparse:
        return _Sparse(*map(np.array, self.components))


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
        splits = [tf.constant(np.concatenate([[0], np.cumsum(each)]), spec.row_splits_dtype) for each in lengths]
        return packed([spec], [tf.constant(values, spec.dtype), *splits])[0]
    if isinstance(spec, tf.SparseTensorSpec):
        values, others, lengths, shapes = (np.asarray(part) for part in parts)
        row: Any = np.repeat(np.arange(len(lengths)), lengths)
        indices = np.concatenate([row[:, np.newaxis], others], axis=1)
        return tf.SparseTensor(indices, tf.constant(values, spec.dtype), [len(lengths), *shapes.max(axis=0)])
    return parts[0]
