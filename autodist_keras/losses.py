"""Losses that compare the examples of a batch with each other.

In: a loss. Out: the same loss of the whole batch, on any number of replicas. The module has no part in a loss that is
a mean over examples: each replica computes such a loss for its own slice.
"""

from __future__ import annotations

from typing import Any

import keras

from autodist_core.capture import whole_batch
from autodist_keras import seams


@keras.saving.register_keras_serializable("autodist_keras")
class WholeBatch(keras.losses.Loss):
    """A loss that every replica computes from the examples of the whole batch. On one device: the loss itself.

    Use it for a loss that depends on which examples are together in a batch, such as one with the negatives of the
    batch. `loss` is what `compile(loss=...)` takes: a loss, a function of labels and predictions, or a name.

    >>> import numpy as np
    >>> def spread(labels, embeddings):
    ...     return keras.ops.var(embeddings)
    >>> WholeBatch(spread)(np.zeros((2, 1)), np.array([[1.0], [3.0]]))
    <tf.Tensor: shape=(), dtype=float32, numpy=1.0>
    """

    def __init__(self, loss: Any, name: str | None = None) -> None:
        self.loss = keras.losses.get(loss)
        own = getattr(self.loss, "name", None) or getattr(self.loss, "__name__", "whole_batch")
        super().__init__(name or own)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The loss of the whole batch: one number."""
        mask = seams.GET_MASK.get()(y_pred)
        y_true, y_pred, sample_weight, mask = whole_batch((y_true, y_pred, sample_weight, mask))
        if mask is not None:
            seams.SET_MASK.get()(y_pred, mask)
        loss = self.loss if isinstance(self.loss, keras.losses.Loss) else _OfFunction(self.loss)
        return loss(y_true, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs to make the loss again.

        >>> WholeBatch("mse").get_config()["name"]
        'mean_squared_error'
        """
        return {"loss": keras.saving.serialize_keras_object(self.loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WholeBatch:
        """The loss that `get_config` described.

        >>> WholeBatch.from_config(WholeBatch("mse", name="errors").get_config()).name
        'errors'
        """
        return cls(keras.saving.deserialize_keras_object(config["loss"]), config["name"])


class _OfFunction(keras.losses.Loss):
    """The loss of a function of labels and predictions, reduced as Keras reduces it."""

    def __init__(self, function: Any) -> None:
        super().__init__("whole_batch")  # its scope, which may not begin with "_" at the top of a step
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The values of the function."""
        return self._function(y_true, y_pred)
