"""Retrieval with two towers: a user must find the own film among the films of the whole batch.

`WholeBatch` gives the in-batch softmax all embeddings of the batch.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from autodist_keras.losses import WholeBatch

USERS, FILMS, WIDTH = 12, 9, 5


def in_batch_softmax(labels: Any, towers: Any) -> Any:
    """Return a loss for each pair of a user and a film: the batch's other films are the wrong answers."""
    users, films = ops.split(towers, 2, axis=-1)
    scores = ops.matmul(users, ops.transpose(films))
    return ops.sparse_categorical_crossentropy(ops.arange(ops.shape(scores)[0]), scores, from_logits=True)


def build(loss: Any = WholeBatch) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `loss` makes the loss from `in_batch_softmax`."""
    rng = np.random.default_rng(19)
    names, numbers = [f"film {index}" for index in range(FILMS)], list(range(100, 100 + USERS))
    users, films = rng.choice(numbers, size=21), rng.choice(np.array(names, object), size=21)

    user, film = keras.Input((), name="user", dtype="int64"), keras.Input((), name="film", dtype="string")
    of_user = layers.IntegerLookup(vocabulary=numbers)(user)
    of_film = layers.StringLookup(vocabulary=names)(film)
    towers = []
    for size, index in ((USERS, of_user), (FILMS, of_film)):
        x = layers.Dense(8, activation="relu")(layers.Embedding(size + 1, WIDTH)(index))
        # A bias of the films would add the same number to all scores of a user.
        towers.append(layers.Dense(WIDTH, use_bias=False)(x))
    model = keras.Model({"user": user, "film": film}, layers.Concatenate()(towers), name="two_tower")
    model.compile(keras.optimizers.Adagrad(0.1), loss(in_batch_softmax))
    # The labels of a pair are not used: each user's film is the one in the same row.
    return model, {"x": {"user": users, "film": films}, "y": np.zeros(21)}
