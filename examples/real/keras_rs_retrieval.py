"""Two towers of keras-rs learn which film a user watches: the other films of the batch are the wrong answers."""

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import keras_rs
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from autodist_keras.losses import WholeBatch

USERS, FILMS = 100, 50


class Retrieval(keras.Model):
    """The two towers. Their outputs stand side by side, for a loss that needs both."""

    def __init__(self) -> None:
        super().__init__()
        self.users = keras.layers.Embedding(USERS, 16)
        self.films = keras.layers.Embedding(FILMS, 16)

    def call(self, inputs: Any) -> Any:
        return keras.ops.concatenate([self.users(inputs["user"]), self.films(inputs["film"])], axis=-1)

    def best(self, user: Any) -> Any:
        """Return the scores and the numbers of the films that a user likes best."""
        return keras_rs.layers.BruteForceRetrieval(self.films.embeddings, k=3)(self.users(user))


def in_batch_softmax(films: Any, towers: Any) -> Any:
    """Return a loss for each pair; a film that stands in the batch again is no wrong answer."""
    queries, candidates = keras.ops.split(towers, 2, axis=-1)
    scores = keras.ops.matmul(queries, keras.ops.transpose(candidates))
    own = keras.ops.eye(keras.ops.shape(scores)[0])
    scores = keras_rs.layers.RemoveAccidentalHits()(scores, own, keras.ops.reshape(films, (-1,)))
    return keras.losses.categorical_crossentropy(own, scores, from_logits=True)


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train the towers, and return the model, and its history."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    ratings = {"user": rng.integers(0, USERS, 500), "film": rng.integers(0, FILMS, 500)}
    model = Retrieval()
    model.compile(keras.optimizers.Adam(0.05), WholeBatch(in_batch_softmax))
    fit = DistributedModel(model, ResourceSpec.local(cpus=2)).fit if distributed else model.fit
    history = fit(ratings, ratings["film"], batch_size=64, epochs=2, verbose=0)
    return model, history.history


if __name__ == "__main__":
    model, logged = train()
    print(logged, model.best(np.array([7])))
