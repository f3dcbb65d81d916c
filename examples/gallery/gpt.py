"""A small GPT: each token attends to the tokens before it, and predicts the next one.

The same table embeds the tokens and scores the next one, so it gets a sparse and a dense gradient.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

VOCABULARY, LENGTH, WIDTH = 20, 10, 8


class Embedded(layers.Layer):
    """Embeds tokens and their places, and turns vectors into scores of tokens with the same table."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = layers.Embedding(VOCABULARY, WIDTH), layers.Embedding(LENGTH, WIDTH)

    def call(self, tokens: Any) -> Any:
        return self.tokens(tokens) + self.places(ops.arange(ops.shape(tokens)[-1]))

    def scores(self, vectors: Any) -> Any:
        return ops.matmul(vectors, ops.transpose(self.tokens.embeddings))


class GPT(keras.Model):
    """Two blocks of causal attention between the embedding and the scores."""

    def __init__(self) -> None:
        super().__init__(name="gpt")
        self.embedded = Embedded()
        self.norms = [layers.LayerNormalization() for _ in range(4)]
        self.attentions = [layers.MultiHeadAttention(2, WIDTH // 2, use_bias=False) for _ in range(2)]
        self.wides = [layers.Dense(16, activation="gelu") for _ in range(2)]
        self.narrows = [layers.Dense(WIDTH) for _ in range(2)]

    def call(self, tokens: Any) -> Any:
        x = self.embedded(tokens)
        for block in range(2):
            attending = self.norms[2 * block](x)
            x += self.attentions[block](attending, attending, use_causal_mask=True)
            x += self.narrows[block](self.wides[block](self.norms[2 * block + 1](x)))
        return self.embedded.scores(x)


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    tokens = np.random.default_rng(14).integers(VOCABULARY, size=(21, LENGTH + 1))
    model = GPT()
    model(tokens[:1, :-1])  # makes the variables
    warm = keras.optimizers.schedules.CosineDecay(0.0, 20, warmup_target=1e-2, warmup_steps=3)
    model.compile(
        keras.optimizers.AdamW(warm, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model, {"x": tokens[:, :-1], "y": tokens[:, 1:]}
