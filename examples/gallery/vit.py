"""A vision transformer: the patches of an image are tokens, which attend to each other.

The table of positions is looked up with the same indices for every example.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

PATCH, PATCHES, WIDTH, CLASSES = 4, 4, 8, 3


class Patches(layers.Layer):
    """Cuts an image into patches, and gives each as a vector."""

    def call(self, images: Any) -> Any:
        found = ops.image.extract_patches(images, PATCH)
        return ops.reshape(found, (-1, PATCHES, PATCH * PATCH * 3))


class PatchEncoder(layers.Layer):
    """Projects each patch, and adds an embedding of its place."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = layers.Dense(WIDTH)
        self.position = layers.Embedding(PATCHES, WIDTH)

    def call(self, patches: Any) -> Any:
        return self.projection(patches) + self.position(ops.arange(PATCHES))


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(1)
    images, labels = rng.uniform(0, 255, size=(21, 8, 8, 3)), rng.integers(CLASSES, size=21)

    inputs = keras.Input((8, 8, 3))
    normalized = layers.Normalization()
    normalized.adapt(images)
    x = PatchEncoder()(Patches()(normalized(inputs)))
    for _ in range(2):
        attending = layers.LayerNormalization()(x)
        # A bias of the keys has no effect on what attention computes.
        x += layers.MultiHeadAttention(2, WIDTH // 2, use_bias=False)(attending, attending)
        x += layers.Dense(WIDTH)(layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x)))
    x = layers.Flatten()(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(CLASSES)(x), name="vit")
    model.compile(
        keras.optimizers.AdamW(1e-3, weight_decay=1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True)],
    )
    return model, {"x": images, "y": labels}
