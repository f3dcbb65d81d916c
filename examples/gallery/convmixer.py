"""ConvMixer: depthwise convolutions mix places, pointwise ones mix channels, each with batch normalization.

`synchronized=True` gives batch normalization the statistics of the whole batch.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

FILTERS, CLASSES = 6, 3


def activated(x: Any) -> Any:
    """Return the activations of a convolution, normalized over the batch."""
    return layers.BatchNormalization(synchronized=True)(layers.Activation("gelu")(x))


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(2)
    images, labels = rng.uniform(0, 255, size=(21, 8, 8, 3)), rng.integers(CLASSES, size=21)

    inputs = keras.Input((8, 8, 3))
    x = layers.Rescaling(1 / 255)(inputs)
    x = activated(layers.Conv2D(FILTERS, 2, strides=2)(x))
    for _ in range(2):
        x = layers.Add()([activated(layers.DepthwiseConv2D(3, padding="same")(x)), x])
        x = activated(layers.Conv2D(FILTERS, 1)(x))
    outputs = layers.Dense(CLASSES, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, outputs, name="convmixer")
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-2, 20), weight_decay=1e-4)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, {"x": images, "y": labels, "validation_data": (images[:5], labels[:5])}
