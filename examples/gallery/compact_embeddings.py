"""Embeddings that save memory: a quotient and a remainder make a user's vector, and rare films have narrow ones.

Tables of several widths get sparse gradients, and projections get dense ones.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

USERS, BUCKETS, WIDTH = 30, 6, 4
BLOCKS = ((0, 4, 4), (4, 16, 2))
"""For each block of films: the first, how many, and the width of its table."""


class QuotientRemainder(layers.Layer):
    """Makes a vector of two small tables in place of one large one."""

    def __init__(self) -> None:
        super().__init__()
        self.quotients = layers.Embedding(USERS // BUCKETS, WIDTH)
        self.remainders = layers.Embedding(BUCKETS, WIDTH)

    def call(self, users: Any) -> Any:
        return self.quotients(users // BUCKETS) * self.remainders(users % BUCKETS)


class MixedDimensions(layers.Layer):
    """Gives frequent films wide vectors and rare ones narrow ones, projected to one width."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [layers.Embedding(count, width) for _, count, width in BLOCKS]
        self.projections = [layers.Dense(WIDTH, use_bias=False) for _ in BLOCKS]

    def call(self, films: Any) -> Any:
        total = 0.0
        for (first, count, _), table, projection in zip(BLOCKS, self.tables, self.projections, strict=True):
            inside = ops.logical_and(films >= first, films < first + count)
            vectors = projection(table(ops.where(inside, films - first, 0)))
            total += vectors * ops.cast(inside, vectors.dtype)[:, None]
        return total


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(23)
    users, films, ratings = rng.integers(USERS, size=21), rng.integers(20, size=21), rng.uniform(size=21)

    user, film = keras.Input((), name="user", dtype="int64"), keras.Input((), name="film", dtype="int64")
    liked = layers.Dot(axes=1)([QuotientRemainder()(user), MixedDimensions()(film)])
    model = keras.Model([user, film], layers.Activation("sigmoid")(liked), name="compact_embeddings")
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model, {"x": {"user": users, "film": films}, "y": ratings}
