"""scikit-learn scales data and cross-validates a Keras classifier, whose fits run on all devices."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import numpy as np
from keras.wrappers import SKLearnClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Cross-validate, fit all data, and return that model, and the scores."""
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, size=(250, 20))
    y = (x[:, 0] > 3.0).astype("int64")

    def make_model(X: Any, y: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(y.shape[1], activation="softmax")])
        model.compile(keras.optimizers.Adam(0.05), "categorical_crossentropy")
        return DistributedModel(model, ResourceSpec.local(cpus=2)) if distributed else model

    pipeline = make_pipeline(StandardScaler(), SKLearnClassifier(make_model))
    # `SKLearnClassifier(make_model, fit_kwargs=...)` of Keras 3.15 loses them where scikit-learn copies it.
    fitted = {"sklearnclassifier__epochs": 5, "sklearnclassifier__verbose": 0}
    scores = cross_val_score(pipeline, x, y, cv=3, params=fitted)
    trained = pipeline.fit(x, y, **fitted)[-1].model_
    return trained.model if distributed else trained, {"accuracy": scores}


if __name__ == "__main__":
    print(train()[1])
