"""A DLRM of keras-rs predicts clicks: its tables lie in shards on servers, its dense layers on each replica."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_rs
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel

TABLES = {"user": 1000, "film": 400, "city": 60}


def make_model() -> keras.Model:
    """Return the compiled model: numbers and embeddings of the same width, and the products of each two of them."""
    features = {
        name: keras_rs.layers.FeatureConfig(
            name=name,
            table=keras_rs.layers.TableConfig(
                name=name, vocabulary_size=rows, embedding_dim=8, placement="default_device"
            ),
            input_shape=(None, 1),
            output_shape=(None, 8),
        )
        for name, rows in TABLES.items()
    }
    inputs = {name: keras.Input((1,), dtype="int64", name=name) for name in TABLES}
    numbers = keras.Input((5,), name="numbers")
    embedded = keras_rs.layers.DistributedEmbedding(features)(inputs)
    dense = keras.layers.Dense(8, activation="relu")(keras.layers.Dense(16, activation="relu")(numbers))
    products = keras_rs.layers.DotInteraction()([dense, *embedded.values()])
    top = keras.layers.Dense(16, activation="relu")(keras.layers.Concatenate()([dense, products]))
    model = keras.Model({**inputs, "numbers": numbers}, keras.layers.Dense(1, activation="sigmoid")(top))
    model.compile("adam", "binary_crossentropy", metrics=["auc"])
    return model


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train the model, and return it, and its history."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = {name: rng.integers(0, rows, (500, 1)) for name, rows in TABLES.items()} | {"numbers": rng.random((500, 5))}
    clicks = rng.integers(0, 2, 500)
    model = make_model()
    fit = model.fit
    if distributed:
        # Without `share_memory=False`, replicas of one machine would share one copy, and nothing would travel.
        cluster = ResourceSpec.local(cpus=2)
        fit = DistributedModel(model, cluster, strategy="PartitionedPS", share_memory=False).fit
    history = fit(x, clicks, batch_size=64, epochs=2, verbose=0)
    return model, history.history


if __name__ == "__main__":
    print(train()[1])
