"""A U-Net in the manner of Xception, which gives every pixel of an image a class.

The loss is a mean over the pixels of all images. Batch normalization takes the whole batch's statistics.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

CLASSES = 3


def normalized(x: Any) -> Any:
    """Return the outputs of a convolution, normalized over the batch."""
    return layers.BatchNormalization(synchronized=True)(x)


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(3)
    images, masks = rng.normal(size=(21, 8, 8, 3)), rng.integers(CLASSES, size=(21, 8, 8, 1))

    inputs = keras.Input((8, 8, 3))
    # A convolution before batch normalization needs no bias: the mean is subtracted.
    x = normalized(layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs))
    skipped = layers.Activation("relu")(x)
    x = normalized(layers.SeparableConv2D(6, 3, padding="same", use_bias=False)(skipped))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.Add()([x, layers.Conv2D(6, 1, strides=2)(skipped)])
    up = normalized(layers.Conv2DTranspose(4, 3, padding="same", use_bias=False)(layers.Activation("relu")(x)))
    up = layers.UpSampling2D(2)(up)
    x = layers.Concatenate()([up, skipped])
    outputs = layers.Conv2D(CLASSES, 3, activation="softmax", padding="same")(x)
    model = keras.Model(inputs, outputs, name="unet")
    # The classes are not equally frequent, and the rare one counts more.
    model.compile(
        keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy",
        metrics=[keras.metrics.MeanIoU(CLASSES, sparse_y_pred=False)],
    )
    return model, {"x": images, "y": masks, "sample_weight": 1.0 + (masks == 0)}
