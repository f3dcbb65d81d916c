"""Whole arrays that travel once: what Keras iterates over in their place.

In: Keras's adapter of arrays. Out: `RowsOfArrays`, over which Keras's loop goes. Keras's own adapter makes the order of
the rows: one over the numbers of the rows, in place of the arrays, makes the same order. Each batch is then rows of
`KeptArrays`, which the session sends to the machines with the first batch (`autodist_core/runtime/kept_arrays.py`).
`data_ways.py` decides which arrays are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.runtime import KeptArrays, bytes_of, same_bits
from autodist_keras.training.batches import Batch, BatchIterator


class RowsOfArrays:
    """What Keras iterates over, once for each epoch: batches that are rows of kept arrays.

    >>> rows = tf.data.Dataset.from_tensor_slices([2, 0, 1]).batch(2)
    >>> data = RowsOfArrays(rows, KeptArrays((np.array([1.0, 2.0, 3.0]),)), tf.TensorSpec((None,), tf.float64))
    >>> [np.asarray(batch.arrays[0]).tolist() for batch in data]
    [[3.0, 1.0], [2.0]]
    """

    def __init__(self, rows: Any, kept: KeptArrays, element_spec: Any) -> None:
        self._rows, self._kept, self.element_spec = rows, kept, element_spec
        self._structure = keras.tree.map_structure(
            lambda spec: spec if isinstance(spec, tf.TensorSpec) else None, element_spec
        )
        self._types = [(array.shape[1:], tf.as_dtype(array.dtype)) for array in kept.arrays]

    def __iter__(self) -> KeptIterator:
        return KeptIterator(iter(self._rows), self.element_spec, self.batch)

    def batch(self, rows: Any) -> Batch:
        """The batch of rows with these numbers."""
        numbers = np.asarray(rows)
        specs = tuple(tf.TensorSpec((len(numbers), *shape), dtype) for shape, dtype in self._types)
        return Batch(self._structure, self._kept.rows(numbers), specs, len(numbers))


class KeptIterator(BatchIterator):
    """An iterator of batches that are rows of kept arrays. `RowsOfArrays` has an example."""

    def __init__(self, inner: Any, element_spec: Any, batch: Callable[[Any], Batch]) -> None:
        super().__init__(inner, element_spec)
        self._batch = batch

    def next_of(self, fetch: Callable[[], Any]) -> Batch:
        """The batch of the next row numbers."""
        return self._batch(fetch())


def over_rows(adapter: Any, element_spec: Any, known: KeptArrays | None = None) -> tuple[RowsOfArrays, KeptArrays]:
    """The batches of an adapter of arrays, as rows of copies of these, and the copies.

    Later changes by the user count in no epoch. Where the machines keep a copy already (`known`) and nobody has changed
    the arrays, it is that one.

    >>> from autodist_keras.seams import EPOCH_ITERATOR
    >>> adapter = EPOCH_ITERATOR.get()(tf.distribute.get_strategy(), np.ones((3, 2), "float32")).data_adapter
    >>> rows, kept = over_rows(adapter, (tf.TensorSpec([None, 2]),))
    >>> over_rows(adapter, (tf.TensorSpec([None, 2]),), kept)[1] is kept
    True
    """
    pairs = pairs_of(arrays_of(adapter), element_spec)
    if known is not None and all(_is_same(*each) for each in zip(known.arrays, pairs, strict=True)):
        kept = known
    else:
        kept = KeptArrays(tuple(np.array(leaf, spec.dtype.as_numpy_dtype) for leaf, spec in pairs))
    rows = copy.copy(adapter)
    rows._inputs = np.arange(len(kept.arrays[0]))
    return RowsOfArrays(rows.get_tf_dataset(), kept, element_spec), kept


def _is_same(array: np.ndarray, pair: tuple[Any, Any]) -> bool:
    """Whether an array is, bit by bit, the copy of a leaf of the data."""
    leaf, spec = pair
    other = np.ascontiguousarray(leaf, spec.dtype.as_numpy_dtype)
    return np.array_equal(array, other) if array.dtype == object else same_bits(array, other)


def arrays_of(adapter: Any) -> Any:
    """The arrays of Keras's adapter of arrays; None for another adapter.

    >>> arrays_of(None) is None
    True
    """
    return adapter._inputs if type(adapter).__name__ == "ArrayDataAdapter" else None


def pairs_of(arrays: Any, specs: Any) -> list[tuple[Any, Any]]:
    """The arrays, and the specs of their rows in a batch.

    >>> pairs_of((np.ones(3), None), (tf.TensorSpec([None]), None))
    [(array([1., 1., 1.]), TensorSpec(shape=(None,), dtype=tf.float32, name=None))]
    """
    pairs = zip(keras.tree.flatten(arrays), keras.tree.flatten(specs), strict=True)
    return [(leaf, spec) for leaf, spec in pairs if leaf is not None]


def is_kept_kind(arrays: Any, specs: Any) -> bool:
    """Whether the data is dense arrays of numbers or strings, which machines can keep.

    >>> spec = tf.TensorSpec([None])
    >>> is_kept_kind([np.ones(3)], [spec]), is_kept_kind([tf.ragged.constant([[1.0], []])], [spec])
    (True, False)
    """
    if arrays is None or len(keras.tree.flatten(arrays)) != len(keras.tree.flatten(specs)):
        return False
    return all(
        isinstance(leaf, np.ndarray | tf.Tensor) and isinstance(spec, tf.TensorSpec) and spec.shape.rank
        and (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool or spec.dtype == tf.string)
        for leaf, spec in pairs_of(arrays, specs)
    )  # fmt: skip


def size_of(leaf: Any, spec: Any) -> int:
    """The bytes of an array, in the type in which the model gets it.

    >>> size_of(np.ones((3, 2)), tf.TensorSpec([None, 2], tf.float32))
    24
    """
    if spec.dtype == tf.string:
        return bytes_of(np.asarray(leaf, object))
    return int(np.prod(leaf.shape)) * int(spec.dtype.size)
