"""Batches of what a person hands over, as `train_step` gets them."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def first_batch(whose: str, model: Any, *data: Any) -> Any:
    """The first batch of a dataset, or arrays as one; a batch that lacks the targets that a loss needs is refused.

    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> x, y = np.zeros((8, 3)), np.ones((8, 1))
    >>> [part.shape for part in first_batch("plan", model, x, y)]
    [(8, 3), (8, 1)]
    >>> [part.shape for part in first_batch("plan", model, tf.data.Dataset.from_tensor_slices((x, y)).batch(4))]
    [TensorShape([4, 3]), TensorShape([4, 1])]
    """
    if is_dataset(data[0]):
        batch = taken(whose, *data, count=1)[0]
    else:
        require_arrays(whose, *data)
        batch = keras.utils.pack_x_y_sample_weight(*data)
    _require_targets(whose, model, batch)
    return batch


def is_dataset(data: Any) -> bool:
    """Whether data comes in batches, targets included."""
    return isinstance(data, tf.data.Dataset | keras.utils.PyDataset)


def taken(whose: str, dataset: Any, *besides: Any, count: int) -> list[Any]:
    """The first batches of a dataset, `count` or as many as it has; what is given besides is refused.

    >>> dataset = tf.data.Dataset.range(6).batch(2)
    >>> [batch.numpy().tolist() for batch in taken("verify", dataset, count=2)]
    [[0, 1], [2, 3]]
    """
    kind = "tf.data.Dataset" if isinstance(dataset, tf.data.Dataset) else type(dataset).__name__
    if any(part is not None for part in besides):
        raise ValueError(f"{whose}(x, y): targets come with the batches of a {kind}; leave y out.")
    if isinstance(dataset, tf.data.Dataset):
        batches = list(dataset.take(count))
    else:
        there = dataset.num_batches
        batches = [dataset[index] for index in range(count if there is None else min(count, there))]
    if not batches:
        raise ValueError(f"{whose}(x): the {kind} has no batches; at least 1 is needed.")
    return batches


def require_arrays(whose: str, x: Any, y: Any = None, *others: Any) -> None:
    """Raise unless this is one batch: arrays, and examples in them.

    >>> require_arrays("plan", iter([]))
    Traceback (most recent call last):
    TypeError: plan(x, y): expected the arrays of one batch, a tf.data.Dataset or a keras.utils.PyDataset. Received: x
        of type list_iterator, y of type NoneType.
    """
    leaves = [leaf for leaf in keras.tree.flatten((x, y, others)) if leaf is not None]
    if x is None or not all(hasattr(leaf, "shape") for leaf in leaves):
        raise TypeError(
            f"{whose}(x, y): expected the arrays of one batch, a tf.data.Dataset or a keras.utils.PyDataset. "
            f"Received: x of type {type(x).__name__}, y of type {type(y).__name__}."
        )
    if any(0 in leaf.shape[:1] for leaf in leaves):
        raise ValueError(f"{whose}(x, y): the batch has no examples; at least 1 is needed.")


def _require_targets(whose: str, model: Any, batch: Any) -> None:
    own = keras.Model.train_step is type(model).train_step and keras.Model.compute_loss is type(model).compute_loss
    needed = own and model.compiled and model._compile_loss is not None
    if needed and keras.utils.unpack_x_y_sample_weight(batch)[1] is None:
        raise ValueError(
            f"{whose}: model {model.name!r} is compiled with a loss, which needs targets. "
            f"Pass them, {whose}(x, y), or a dataset whose batches have them."
        )
