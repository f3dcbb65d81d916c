"""A masked autoencoder: the encoder sees some patches of each image, chosen at random, and the decoder makes the rest.

Each replica chooses the patches of its images from a stream of its own.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

PATCHES, PIXELS, WIDTH, HIDDEN = 16, 4, 6, 12


def block(width: int, name: str) -> keras.Model:
    """Return a transformer's block."""
    inputs = keras.Input((None, width))
    x = layers.LayerNormalization()(inputs)
    x = layers.MultiHeadAttention(2, width // 2, use_bias=False)(x, x) + inputs
    return keras.Model(inputs, x + layers.Dense(width, activation="gelu")(layers.LayerNormalization()(x)), name=name)


class MaskedAutoencoder(keras.Model):
    """Hides patches, encodes the others, and trains on the patches that were hidden."""

    def __init__(self, random: Any) -> None:
        super().__init__()
        self.random, self.seeds = random, keras.random.SeedGenerator(13)
        self.projection, self.position = layers.Dense(WIDTH), layers.Embedding(PATCHES, WIDTH)
        self.token = self.add_weight(name="token", shape=(1, 1, PIXELS), initializer="random_normal")
        self.encoder, self.decoder = block(WIDTH, "encoder"), block(WIDTH, "decoder")
        self.pixels = layers.Dense(PIXELS)

    def call(self, images: Any) -> Any:
        patches = ops.reshape(ops.image.extract_patches(images, 2), (-1, PATCHES, PIXELS))
        examples = ops.shape(patches)[0]
        order = ops.argsort(self.random.uniform((examples, PATCHES), seed=self.seeds), axis=-1)
        hidden, seen = order[:, :HIDDEN, None], order[:, HIDDEN:, None]
        positions = ops.broadcast_to(self.position(ops.arange(PATCHES))[None], (examples, PATCHES, WIDTH))
        of_seen = self.projection(ops.take_along_axis(patches, seen, axis=1))
        encoded = self.encoder(of_seen + ops.take_along_axis(positions, seen, axis=1))
        of_hidden = self.projection(ops.broadcast_to(self.token, (examples, HIDDEN, PIXELS)))
        of_hidden += ops.take_along_axis(positions, hidden, axis=1)
        made = self.pixels(self.decoder(ops.concatenate([of_hidden, encoded], axis=1)))
        return made[:, :HIDDEN], ops.take_along_axis(patches, hidden, axis=1)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        made, original = y_pred
        return self.loss(original, made)


def build(random: Any = keras.random) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `random` draws the numbers."""
    images = np.random.default_rng(13).uniform(size=(21, 8, 8, 1))
    model = MaskedAutoencoder(random)
    model.compile(keras.optimizers.AdamW(5e-3), keras.losses.MeanSquaredError())
    return model, {"x": images}
