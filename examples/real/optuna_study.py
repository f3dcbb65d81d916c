"""Optuna searches for the number of units and the learning rate, and each of its trials trains on all devices."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import numpy as np
import optuna

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Run the study, and return the last model, and the best trial's value and parameters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(250, 20))
    y = (x[:, 0] > 0).astype("int64")
    models = []

    def objective(trial: Any) -> float:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([
            keras.Input((20,)),
            keras.layers.Dense(trial.suggest_int("units", 16, 64), activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ])  # fmt: skip
        rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
        models.append(model)
        front = DistributedModel(model, ResourceSpec.local(cpus=2)) if distributed else model
        history = front.fit(x, y, validation_split=0.2, epochs=2, verbose=0)
        if distributed:
            front.close()
        return history.history["val_loss"][-1]

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=3)
    return models[-1], {"loss": study.best_value, **study.best_params}


if __name__ == "__main__":
    print(train()[1])
