"""Speech recognition with CTC: convolutions and recurrent layers over a spectrogram, and a text without alignment.

TensorFlow computes CTC in float32.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

FRAMES, BINS, CHARACTERS, LONGEST = 16, 8, 6, 4


def ctc(texts: Any, predicted: Any) -> Any:
    """Return the CTC loss of each example. A text ends where its zeros begin."""
    frames = ops.full((ops.shape(predicted)[0],), ops.shape(predicted)[1], dtype="int32")
    letters = ops.sum(ops.cast(texts > 0, "int32"), axis=-1)
    return ops.ctc_loss(ops.cast(texts, "int32"), predicted, letters, frames, mask_index=0)


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(17)
    spectrograms = rng.normal(size=(21, FRAMES, BINS))
    texts = rng.integers(1, CHARACTERS, size=(21, LONGEST)) * (np.arange(LONGEST) < rng.integers(1, 5, size=(21, 1)))

    inputs = keras.Input((None, BINS))
    x = layers.Reshape((-1, BINS, 1))(inputs)
    x = layers.Conv2D(3, (5, 3), strides=(2, 2), padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization(synchronized=True)(x))
    x = layers.Reshape((-1, x.shape[-2] * x.shape[-1]))(x)
    x = layers.Bidirectional(layers.GRU(5, return_sequences=True))(x)
    x = layers.Dense(CHARACTERS)(layers.Dense(8, activation="relu")(x))
    model = keras.Model(inputs, x, name="speech")
    model.compile(keras.optimizers.Adam(1e-3), ctc)
    return model, {"x": spectrograms, "y": texts}
