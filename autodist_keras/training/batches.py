"""One batch as a step takes it: what kinds of batches there are, and which are refused.

In: a batch as Keras's loop hands it over, in any structure. Out: a `Batch` of flat arrays with their specs. A new kind
of batch, such as ragged tensors, begins here.

>>> read_batch((np.zeros((4, 2)), None)).specs
(TensorSpec(shape=(4, 2), dtype=tf.float64, name=None),)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.errors import CaptureError


@dataclass(frozen=True)
class Batch:
    """One batch as the step takes it: flat arrays, their specs and the number of examples."""

    structure: Any
    arrays: tuple[Any, ...]
    specs: tuple[tf.TensorSpec, ...]
    total: int

    @property
    def signature(self) -> tuple[Any, ...]:
        """Structure, types and ranks. One captured step can take batches of equal signatures."""
        # With the keys and kinds of containers: two structures may flatten to equal types in another order.
        present = repr(keras.tree.map_structure(lambda leaf: leaf is not None, self.structure))
        return present, tuple(spec.dtype for spec in self.specs), tuple(spec.shape.rank for spec in self.specs)


def read_batch(data: Any) -> Batch:
    """Take a batch apart. A missing part (None, or an empty Optional) has no array.

    >>> batch = read_batch({"x": np.zeros((3, 2)), "y": np.ones(3)})
    >>> batch.total, [array.shape for array in batch.arrays]
    (3, [(3, 2), (3,)])
    """
    structure = keras.tree.map_structure(
        lambda leaf: None if leaf is None or isinstance(leaf, tf.experimental.Optional) else leaf, data
    )
    arrays, specs = [], []
    for leaf in keras.tree.flatten(structure):
        if leaf is None:
            continue
        if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            raise CaptureError(
                f"a batch contains a {type(leaf).__name__}, which cannot be split over replicas yet. "
                "Make it dense first (to_tensor, sparse.to_dense), for instance in the dataset's map."
            )
        tensor = leaf if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)
        arrays.append(_array(tensor))
        specs.append(tf.TensorSpec(tensor.shape, tensor.dtype))
    sizes = [array.shape[0] for array in arrays if np.ndim(array) > 0]
    if not sizes:
        raise CaptureError("a batch contains no array with a batch axis; the first axis of inputs counts examples.")
    if len(set(sizes)) > 1:
        raise CaptureError(
            f"the arrays of a batch disagree on the number of examples (first axes: {', '.join(map(str, sizes))}). "
            "Every input, target and weight must have one row for each example; a dataset must be batched."
        )
    return Batch(structure, tuple(arrays), tuple(specs), sizes[0])


def _array(tensor: Any) -> Any:
    """A tensor as an array, without a copy if numpy can share the memory."""
    if tensor.dtype in (tf.string, tf.bfloat16):
        return tensor.numpy()
    return np.asarray(memoryview(tensor)) if tensor.shape.rank else tensor.numpy()
