"""A siamese network: one tower sees both images of a pair, and the distance of its outputs says whether they match.

Batch normalization takes the whole batch's statistics, in the tower and of the distance.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

MARGIN = 1.0


class Distance(layers.Layer):
    """Computes the distance of two vectors."""

    def call(self, one: Any, other: Any) -> Any:
        squares = ops.sum(ops.square(one - other), axis=1, keepdims=True)
        return ops.sqrt(ops.maximum(squares, keras.config.epsilon()))


def contrastive(match: Any, predicted: Any) -> Any:
    """Return a loss for each pair: near zero for pairs that match, and beyond the margin for others."""
    match = ops.cast(match, predicted.dtype)
    apart = ops.square(ops.maximum(MARGIN - predicted, 0))
    return ops.mean((1 - match) * ops.square(predicted) + match * apart, axis=-1)


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(10)
    classes, patterns = rng.integers(3, size=(2, 21)), rng.normal(size=(3, 8, 8, 1))
    one, other = (patterns[each] + rng.normal(scale=0.5, size=(21, 8, 8, 1)) for each in classes)
    match = (classes[0] != classes[1]).astype("int64")[:, None]

    image = keras.Input((8, 8, 1))
    x = layers.BatchNormalization(synchronized=True)(image)
    x = layers.AveragePooling2D(2)(layers.Conv2D(4, 5, activation="tanh", padding="same")(x))
    x = layers.BatchNormalization(synchronized=True)(layers.Flatten()(x))
    tower = keras.Model(image, layers.Dense(5, activation="tanh")(x), name="tower")

    first, second = keras.Input((8, 8, 1), name="first"), keras.Input((8, 8, 1), name="second")
    distance = layers.BatchNormalization(synchronized=True)(Distance()(tower(first), tower(second)))
    model = keras.Model([first, second], layers.Dense(1, activation="sigmoid")(distance), name="siamese")
    model.compile("rmsprop", contrastive, metrics=["accuracy"])
    return model, {"x": [one, other], "y": match}
