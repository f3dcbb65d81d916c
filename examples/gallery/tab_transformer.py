"""TabTransformer: the categories of a table's row attend to each other, and numbers join them afterwards.

Each example has a weight. The table of columns is looked up with the same indices for every example.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

CATEGORIES = {"job": ["cook", "nurse", "smith"], "town": ["Lima", "Oslo"], "mood": ["high", "low", "odd"]}
WIDTH = 4


class OfColumns(layers.Layer):
    """Stacks the columns' embeddings, and adds an embedding of the column."""

    def __init__(self) -> None:
        super().__init__()
        self.column = layers.Embedding(len(CATEGORIES), WIDTH)

    def call(self, embedded: Any) -> Any:
        return ops.stack(embedded, axis=1) + self.column(ops.arange(len(CATEGORIES)))


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(20)
    columns = {name: rng.choice(np.array(values, object), size=21) for name, values in CATEGORIES.items()}
    columns["numbers"] = rng.normal(size=(21, 3))
    label, weight = rng.integers(2, size=21), rng.uniform(0.5, 2.0, size=21)

    inputs = {name: keras.Input((), name=name, dtype="string") for name in CATEGORIES}
    inputs["numbers"] = keras.Input((3,), name="numbers")
    embedded = []
    for name, values in CATEGORIES.items():
        index = layers.StringLookup(vocabulary=values, num_oov_indices=0)(inputs[name])
        embedded.append(layers.Embedding(len(values), WIDTH)(index))
    x = OfColumns()(embedded)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2, use_bias=False)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH, activation="gelu")(x))
    numbers = layers.LayerNormalization()(inputs["numbers"])
    x = layers.Concatenate()([layers.Flatten()(x), numbers])
    x = layers.Dense(6, activation="selu")(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x), name="tab_transformer")
    model.compile(keras.optimizers.AdamW(1e-3), "binary_crossentropy", weighted_metrics=["accuracy"])
    return model, {"x": columns, "y": label, "sample_weight": weight}
