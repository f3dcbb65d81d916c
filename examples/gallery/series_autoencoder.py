"""Anomalies in a series: a convolutional autoencoder of windows, whose error is large where a window is odd.

Training stops early, by the loss of the validation.
"""

from typing import Any

import keras
import numpy as np
from keras import layers

WINDOW = 16


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(21)
    series = np.sin(np.arange(26 + WINDOW) / 3) + 0.1 * rng.normal(size=26 + WINDOW)
    windows = np.lib.stride_tricks.sliding_window_view(series, WINDOW)[:26, :, None]

    model = keras.Sequential([
        keras.Input((WINDOW, 1)),
        layers.Conv1D(6, 5, padding="same", strides=2, activation="relu"),
        layers.Conv1D(4, 5, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(4, 5, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(6, 5, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(1, 5, padding="same"),
    ], name="series_autoencoder")  # fmt: skip
    model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
    stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, mode="min", restore_best_weights=True)
    return model, {"x": windows, "y": windows, "validation_split": 0.2, "callbacks": [stopping]}
