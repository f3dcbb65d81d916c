"""Translation with masks: a recurrent encoder, a decoder with attention, and sentences of different lengths.

The loss is a mean over the tokens that are no padding, of which each replica has another number.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

SOURCE, TARGET, LENGTH, WIDTH = 15, 12, 7, 6


def sentences(rng: np.random.Generator, vocabulary: int) -> np.ndarray:
    """Return sentences of different lengths, padded with zeros."""
    tokens = rng.integers(1, vocabulary, size=(21, LENGTH))
    return tokens * (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, size=(21, 1)))


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(15)
    source, target = sentences(rng, SOURCE), sentences(rng, TARGET)
    shifted = np.concatenate([np.full((21, 1), 1), target[:, :-1]], axis=1) * (target > 0)

    asked, before = keras.Input((LENGTH,), name="source"), keras.Input((LENGTH,), name="before")
    x = layers.Embedding(SOURCE, WIDTH, mask_zero=True)(asked)
    encoded = layers.Bidirectional(layers.GRU(WIDTH, return_sequences=True), merge_mode="sum")(x)
    state = layers.GRU(WIDTH)(encoded)
    x = layers.Embedding(TARGET, WIDTH, mask_zero=True)(before)
    x = layers.GRU(WIDTH, return_sequences=True)(x, initial_state=state)
    x = layers.Add()([x, layers.Attention()([x, encoded])])
    model = keras.Model([asked, before], layers.Dense(TARGET)(x), name="seq2seq")
    model.compile(
        "rmsprop", keras.losses.SparseCategoricalCrossentropy(from_logits=True), weighted_metrics=["accuracy"]
    )
    return model, {"x": {"source": source, "before": shifted}, "y": target}
