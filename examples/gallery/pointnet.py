"""PointNet: a network that turns a cloud of points by a matrix that it learns, which a penalty keeps orthogonal.

The penalty is a regularizer of an activity, a sum over the examples that Keras divides by their number.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

POINTS, CLASSES = 12, 3


class Orthogonal(keras.regularizers.Regularizer):
    """The square of what a matrix times its transpose differs from the identity, added up over the examples."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, flat: Any) -> Any:
        matrices = ops.reshape(flat, (-1, self.size, self.size))
        squared = ops.einsum("nij,nkj->nik", matrices, matrices)
        return 0.001 * ops.sum(ops.square(squared - ops.eye(self.size, dtype=squared.dtype)))


def normalized(x: Any, layer: Any) -> Any:
    """Return the activations of a layer without bias, normalized over the batch."""
    return layers.ReLU()(layers.BatchNormalization(synchronized=True)(layer(x)))


def turned(points: Any, size: int) -> Any:
    """Return the points, turned by a matrix for each cloud."""
    x = normalized(points, layers.Conv1D(8, 1, use_bias=False))
    x = layers.Dense(6, activation="relu")(layers.GlobalMaxPooling1D()(x))
    identity = keras.initializers.Constant(np.eye(size).flatten())
    flat = layers.Dense(
        size * size, kernel_initializer=keras.initializers.RandomNormal(stddev=0.01), bias_initializer=identity,
        activity_regularizer=Orthogonal(size),
    )(x)
    return layers.Dot(axes=(2, 1))([points, layers.Reshape((size, size))(flat)])


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(27)
    clouds, labels = rng.normal(size=(21, POINTS, 3)), rng.integers(CLASSES, size=21)

    inputs = keras.Input((POINTS, 3))
    x = normalized(turned(inputs, 3), layers.Conv1D(6, 1, use_bias=False))
    x = normalized(turned(x, 6), layers.Conv1D(10, 1, use_bias=False))
    x = layers.Dense(8, activation="relu")(layers.GlobalMaxPooling1D()(x))
    model = keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x), name="pointnet")
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, {"x": clouds, "y": labels}
