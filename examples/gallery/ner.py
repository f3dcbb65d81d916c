"""Named entities: a transformer gives each word a tag, and the loss is the mean over the words of the batch.

The loss divides two sums over the batch. `WholeBatch` gives it the whole batch.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from autodist_keras.losses import WholeBatch

WORDS, TAGS, LENGTH, WIDTH = 25, 4, 8, 8


class OfWords(keras.losses.Loss):
    """The mean over the words; a tag of zero is padding."""

    def call(self, tags: Any, predicted: Any) -> Any:
        losses = ops.sparse_categorical_crossentropy(tags, predicted, from_logits=True)
        is_word = ops.cast(tags > 0, losses.dtype)
        return ops.sum(losses * is_word) / ops.sum(is_word)


def build(loss: Any = WholeBatch) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `loss` makes the loss from `OfWords()`."""
    rng = np.random.default_rng(16)
    lengths = rng.integers(2, LENGTH + 1, size=(21, 1))
    is_word = np.arange(LENGTH) < lengths
    words = rng.choice(["Anna", "Oslo", "is", "in", "on", "Rhine", "the"], size=(21, LENGTH))
    words, tags = np.where(is_word, words, ""), rng.integers(1, TAGS, size=(21, LENGTH)) * is_word

    inputs = keras.Input((LENGTH,), dtype="string")
    tokens = layers.StringLookup(vocabulary=["Anna", "Oslo", "is", "in", "on", "the"], mask_token="")(inputs)
    x = layers.Embedding(WORDS, WIDTH)(tokens)
    attended = layers.MultiHeadAttention(2, WIDTH // 2, use_bias=False)(x, x)
    x = layers.LayerNormalization()(x + attended)
    x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(16, activation="relu")(x)))
    model = keras.Model(inputs, layers.Dense(TAGS)(layers.Dense(8, activation="relu")(x)), name="ner")
    model.compile("adam", loss(OfWords(name="of_words")))
    return model, {"x": tf.constant(words), "y": tags}
