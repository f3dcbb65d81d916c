"""Moving averages of the weights: the optimizer keeps them, and a callback validates and ends with them."""

from typing import Any

import keras
import numpy as np
from keras import layers


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(25)
    images, labels = rng.normal(size=(26, 6, 6, 1)), rng.integers(3, size=26)
    model = keras.Sequential([
        keras.Input((6, 6, 1)),
        layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(3),
    ], name="averaged")  # fmt: skip
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, use_ema=True, ema_momentum=0.8),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        metrics=["accuracy"],
    )
    swapping = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    return model, {"x": images, "y": np.eye(3)[labels], "validation_split": 0.2, "callbacks": [swapping]}
