"""One batch as a step takes it: what kinds of batches there are, and which are refused.

In: a batch as Keras's loop hands it over, in any structure. Out: a `Batch` of flat arrays with the specs of its
tensors. A ragged or sparse tensor has an array for each component (see `autodist_core.runtime.composites`).

>>> read_batch((tf.zeros((4, 2)), None)).specs
(TensorSpec(shape=(4, 2), dtype=tf.float32, name=None),)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from types import GeneratorType
from typing import Any

import keras
import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.interrupts import defer_interrupt
from autodist_core.runtime import arrays_of, kind_of, spec_of


@dataclass(frozen=True)
class Batch:
    """One batch as the step takes it: flat arrays, the specs of its tensors and the number of examples.

    >>> batch, longer = read_batch((tf.zeros((4, 2)), None)), read_batch((tf.zeros((8, 2)), None))
    >>> batch.total, batch.signature == longer.signature, batch.signature == read_batch((tf.zeros(4), None)).signature
    (4, True, False)
    """

    structure: Any
    arrays: tuple[Any, ...]
    specs: tuple[Any, ...]
    total: int

    @property
    def whole(self) -> tuple[bool, ...]:
        """For each tensor, whether every replica gets all of it. A batch has no such tensor."""
        return (False,) * len(self.specs)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Structure, types and ranks. One captured step can take batches of equal signatures."""
        # With the keys and kinds of containers: two structures may flatten to equal types in another order.
        present = repr(keras.tree.map_structure(lambda leaf: leaf is not None, self.structure))
        return present, *map(kind_of, self.specs)


def kind_of_data(x: Any) -> str:
    """What sort of data it is that `fit` gets.

    >>> kind_of_data(tf.data.Dataset.range(3)), kind_of_data(None)
    ('tf.data.Dataset', 'arrays')
    """
    kinds = {tf.data.Dataset: "tf.data.Dataset", keras.utils.PyDataset: "PyDataset", GeneratorType: "generator"}
    return next((name for kind, name in kinds.items() if isinstance(x, kind)), "arrays")


class BatchIterator(ABC):
    """An iterator of batches that travel in a way of their own, over an iterator of tf.data.

    >>> class Doubled(BatchIterator):
    ...     def next_of(self, fetch):
    ...         return read_batch(2 * fetch())
    >>> [batch.arrays[0].numpy().tolist() for batch in Doubled(iter(tf.data.Dataset.range(3).batch(2)), None)]
    [[0, 2], [4]]
    """

    def __init__(self, inner: Any, element_spec: Any) -> None:
        self.inner, self.element_spec = inner, element_spec

    @property
    def at_next(self) -> Any:
        """The inner iterator, which will make the next batch."""
        return self.inner

    @abstractmethod
    def next_of(self, fetch: Callable[[], Any]) -> Batch:
        """The next batch. `fetch` takes the next element of the inner iterator."""

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        # Keras's `predict` fetches by itself. Ctrl-C must not break an eager call off: it converts shapes.
        with defer_interrupt():
            return self.next_of(lambda: next(self.inner))


def read_batch(data: Any) -> Batch:
    """Take a batch apart. A missing part (None, or an empty Optional) has no array. A `Batch` is returned as it is.

    >>> batch = read_batch({"x": tf.zeros((3, 2)), "y": tf.ones(3)})
    >>> batch.total, [array.shape.as_list() for array in batch.arrays]
    (3, [[3, 2], [3]])
    """
    if isinstance(data, Batch):
        return data
    structure = keras.tree.map_structure(
        lambda leaf: None if leaf is None or isinstance(leaf, tf.experimental.Optional) else leaf, data
    )
    arrays, specs = [], []
    for leaf in keras.tree.flatten(structure):
        if leaf is None:
            continue
        tensor = leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)
        arrays.append(arrays_of(tensor))
        specs.append(spec_of(tensor))
    # All components of a tensor have its number of rows.
    sizes = [int(parts[0].shape[0]) for parts in arrays if len(parts[0].shape)]
    if not sizes:
        raise CaptureError("a batch contains no array with a batch axis; the first axis of inputs counts examples.")
    if len(set(sizes)) > 1:
        raise CaptureError(
            f"the arrays of a batch disagree on the number of examples (first axes: {', '.join(map(str, sizes))}). "
            "Every input, target and weight must have one row for each example; a dataset must be batched."
        )
    return Batch(structure, tuple(chain.from_iterable(arrays)), tuple(specs), sizes[0])
