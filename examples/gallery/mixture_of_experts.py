"""A mixture of experts: a router chooses one expert for each token, and a loss keeps the experts equally busy.

How busy an expert is, the whole batch decides: the router's loss takes its numbers from `whole_batch`.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from autodist_core import whole_batch

EXPERTS, VOCABULARY, LENGTH, WIDTH = 3, 20, 6, 8


class Switch(layers.Layer):
    """Sends each token through the expert that the router likes best. `gather` gives the whole batch's rows."""

    def __init__(self, gather: Any) -> None:
        super().__init__(name="switch")
        self.gather = gather
        self.router = layers.Dense(EXPERTS, use_bias=False)
        self.experts = [
            keras.Sequential([keras.Input((None, WIDTH)), layers.Dense(12, activation="relu"), layers.Dense(WIDTH)])
            for _ in range(EXPERTS)
        ]

    def call(self, tokens: Any) -> Any:
        likes = ops.softmax(self.router(tokens))
        chosen = ops.one_hot(ops.argmax(likes, axis=-1), EXPERTS, dtype=likes.dtype)
        of_batch, chosen_of_batch = self.gather((likes, chosen))
        busy = ops.mean(chosen_of_batch, axis=(0, 1)) * ops.mean(of_batch, axis=(0, 1))
        self.add_loss(0.1 * EXPERTS * ops.sum(busy))
        outputs = ops.stack([expert(tokens) for expert in self.experts], axis=-1)
        return ops.einsum("blwe,ble->blw", outputs, chosen * likes)


def build(gather: Any = whole_batch) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `gather` gives a replica the rows of the whole batch."""
    rng = np.random.default_rng(22)
    tokens, labels = rng.integers(VOCABULARY, size=(21, LENGTH)), rng.integers(2, size=21)

    inputs = keras.Input((LENGTH,), dtype="int64")
    x = layers.Embedding(VOCABULARY, WIDTH)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, WIDTH // 2, use_bias=False)(x, x))
    x = layers.LayerNormalization()(x + Switch(gather)(x))
    x = layers.Dense(6, activation="relu")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x), name="mixture_of_experts")
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, {"x": tokens, "y": labels}
