"""One batch of what a person hands over, as `train_step` gets it."""

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
    batch: Any = data
    if isinstance(data[0], tf.data.Dataset | keras.utils.PyDataset):
        kind = type(data[0]).__name__
        if any(part is not None for part in data[1:]):
            raise ValueError(f"{whose}(x, y): targets come with the batches of a {kind}; leave y out.")
        batches = list(data[0].take(1)) if isinstance(data[0], tf.data.Dataset) else [data[0][0]]
        if not batches:
            raise ValueError(f"{whose}(x): the {kind} has no batches; at least 1 is needed.")
        batch = batches[0]
    _require_targets(whose, model, batch)
    return batch


def _require_targets(whose: str, model: Any, batch: Any) -> None:
    own = keras.Model.train_step is type(model).train_step and keras.Model.compute_loss is type(model).compute_loss
    needed = own and model.compiled and model._compile_loss is not None
    if needed and keras.utils.unpack_x_y_sample_weight(batch)[1] is None:
        raise ValueError(
            f"{whose}: model {model.name!r} is compiled with a loss, which needs targets. "
            f"Pass them, {whose}(x, y), or a dataset whose batches have them."
        )
