"""KerasTuner searches for the best number of units, and each of its trials trains on all devices."""

import os
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_tuner
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Search, and return the best model, and the score of each trial."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(250, 20))
    y = (x[:, 0] > 0).astype("int64")
    cluster = ResourceSpec.local(cpus=2)

    def build_model(hp: Any) -> keras.Model:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([
            keras.Input((20,)),
            keras.layers.Dense(hp.Choice("units", [16, 32]), activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ])  # fmt: skip
        model.compile("adam", "sparse_categorical_crossentropy")
        if distributed:
            model.fit = DistributedModel(model, cluster).fit
        return model

    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.GridSearch(build_model, "val_loss", directory=folder)
        tuner.search(x, y, validation_split=0.2, epochs=2, verbose=0)
        trials = {trial.trial_id: trial.score for trial in tuner.oracle.trials.values()}
        return tuner.get_best_models()[0], trials


if __name__ == "__main__":
    best, scores = train()
    best.summary()
    print(scores)
