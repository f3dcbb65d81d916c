"""Gradient accumulation: the optimizer adds the gradients of several batches up, and then updates once.

The accumulated gradients are clipped by their common norm. `steps_per_execution` runs two steps in one call.
"""

from typing import Any

import keras
import numpy as np
from keras import layers


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(24)
    x = rng.normal(size=(21, 6))
    y = x @ rng.normal(size=(6, 2)) + 0.1 * rng.normal(size=(21, 2))
    model = keras.Sequential([
        keras.Input((6,)),
        layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-2)),
        layers.Dense(2),
    ], name="accumulating")  # fmt: skip
    optimizer = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2, global_clipnorm=0.5)
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=2)
    return model, {"x": x, "y": y, "epochs": 3}
