"""Wide and deep learning: columns of strings and numbers, looked up, crossed and normalized inside the model.

The batch is a dict of columns. The vocabularies and the statistics are learnt before `fit`.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(18)
    columns = {
        "work": tf.constant(rng.choice(["private", "public", "none", "own"], size=(21, 1))),
        "country": tf.constant(rng.choice(["NO", "IN", "PE"], size=(21, 1))),
        "age": rng.integers(18, 80, size=(21, 1)),
        "hours": rng.normal(40, 9, size=(21, 1)),
    }
    label = (columns["age"] > 45).astype("int64")

    inputs = {
        name: keras.Input((1,), name=name, dtype="string" if name in ("work", "country") else None)
        for name in columns
    }
    wide, deep = [], []
    for name in ("work", "country"):
        lookup = layers.StringLookup()
        lookup.adapt(columns[name])
        index = lookup(inputs[name])
        size = lookup.vocabulary_size()
        wide.append(layers.CategoryEncoding(size, output_mode="one_hot")(index))
        deep.append(layers.Flatten()(layers.Embedding(size, 3)(index)))
    crossed = layers.HashedCrossing(8, output_mode="one_hot")((inputs["work"], inputs["country"]))
    wide.append(crossed)
    buckets = layers.Discretization(num_bins=4, output_mode="one_hot")
    buckets.adapt(columns["age"])
    wide.append(buckets(inputs["age"]))
    hours = layers.Normalization()
    hours.adapt(columns["hours"])
    deep.append(hours(inputs["hours"]))

    x = layers.Concatenate()(deep)
    for units in (8, 4):
        x = layers.Dense(units, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(synchronized=True)(x))
    outputs = layers.Dense(1, activation="sigmoid")(layers.Concatenate()([*wide, x]))
    model = keras.Model(inputs, outputs, name="wide_and_deep")
    model.compile("adagrad", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(num_thresholds=20)])
    return model, {"x": columns, "y": label, "class_weight": {0: 1.0, 1: 2.5}}
