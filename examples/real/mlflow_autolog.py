"""MLflow logs a training on all devices by itself: one run, with parameters, metrics and tags."""

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import mlflow
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train a model, and return it, and the metrics that MLflow has logged."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(250, 20))
    y = (x[:, 0] > 0).astype("int64")
    model = keras.Sequential([
        keras.Input((20,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2, activation="softmax"),
    ])  # fmt: skip
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{Path(folder) / 'runs.db'}")
        mlflow.keras.autolog(log_models=False)
        fit = DistributedModel(model, ResourceSpec.local(cpus=2)).fit if distributed else model.fit
        fit(x, y, validation_split=0.2, batch_size=50, epochs=3, verbose=0)
        mlflow.keras.autolog(disable=True)
        (run,) = mlflow.search_runs(output_format="list", search_all_experiments=True)
        return model, run.data.metrics


if __name__ == "__main__":
    print(train()[1])
