"""The models with which the forecast of memory is compared, and random data for them.

In: the name of a model. Out: the compiled model, and a batch. Their memory is large beside what varies from run to run.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

CLASSES = 10


@dataclass(frozen=True)
class Model:
    """A model, the size of its batch, and how the batch is drawn from a random generator."""

    make: Callable[[], Any]
    draw: Callable[[Any, int], Any]
    batch: int

    def arrays(self, examples: int = 0) -> tuple[Any, Any]:
        """Return random inputs and labels of one batch, of so many examples if their number is given."""
        import numpy as np

        rng, count = np.random.default_rng(0), examples or self.batch
        return self.draw(rng, count), rng.integers(CLASSES, size=count)


def _compiled(model: Any, optimizer: str = "adam", xla: bool = False) -> Any:
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=xla)
    return model


def dense() -> Any:
    """Six dense layers of 4096: 403 MB of weights."""
    from keras import Input, Sequential, layers

    hidden = [layers.Dense(4096, "relu") for _ in range(6)]
    return _compiled(Sequential([Input((4096,)), *hidden, layers.Dense(CLASSES, "softmax")]))


def cnn(xla: bool = False, dropout: float = 0.2) -> Any:
    """Convolutions with batch normalization."""
    from keras import Input, Sequential, layers

    def convolution(filters: int) -> list[Any]:
        return [
            layers.Conv2D(filters, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()
        ]

    return _compiled(Sequential([
        Input((64, 64, 3)), *convolution(32), *convolution(32), layers.MaxPooling2D(), *convolution(64),
        *convolution(64), layers.GlobalAveragePooling2D(), layers.Dropout(dropout), layers.Dense(CLASSES, "softmax"),
    ]), "sgd", xla)


def transformer(remat: bool = False, policy: str = "float32") -> Any:
    """Four blocks with attention and dropout."""
    import keras
    from keras import layers

    class Block(layers.Layer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.before, self.between = layers.LayerNormalization(), layers.LayerNormalization()
            self.attention = layers.MultiHeadAttention(4, 64, dropout=0.1)
            self.wide, self.narrow = layers.Dense(1024, "gelu"), layers.Dense(256)

        def build(self, shape: Any) -> None:
            for layer in (self.before, self.between, self.wide):
                layer.build(shape)
            self.attention.build(shape, shape)
            self.narrow.build((*shape[:-1], 1024))
            self.built = True

        def call(self, x: Any) -> Any:
            y = self.before(x)
            x += self.attention(y, y)
            return x + self.narrow(self.wide(self.between(x)))

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    words = keras.Input((128,), dtype="int32")
    x = layers.Embedding(8000, 256)(words)
    names = [f"block{number}" for number in range(4)]
    # Only the blocks: a layer within one would be computed again twice.
    with keras.RematScope("list_of_layers", layer_names=names) if remat else nullcontext():
        blocks = [Block(name=name) for name in names]
    for block in blocks:
        x = block(x)
    last = layers.Dense(CLASSES, "softmax", dtype="float32")(layers.GlobalAveragePooling1D()(x))
    keras.config.set_dtype_policy(before)
    return _compiled(keras.Model(words, last))


def normalized() -> Any:
    """Dense layers with batch normalization and dropout, for a large batch."""
    from keras import Input, Sequential, layers

    hidden = [
        layer for _ in range(4)
        for layer in (layers.Dense(1024), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3))
    ]
    return _compiled(Sequential([Input((256,)), *hidden, layers.Dense(CLASSES, "softmax")]))


def recurrent(kind: str = "LSTM") -> Any:
    """Two recurrent layers over 100 steps."""
    from keras import Input, Sequential, layers

    layer = getattr(layers, kind)
    recurrent = [layer(256, return_sequences=True), layer(256)]
    return _compiled(Sequential([Input((100, 64)), *recurrent, layers.Dense(CLASSES, "softmax")]))


def tables() -> Any:
    """Two embedding tables, of half a million and a million rows."""
    import keras
    from keras import layers

    users, things = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    rows = [layers.Embedding(500_000, 32)(users), layers.Embedding(1_000_000, 32)(things)]
    x = layers.Dense(64, "relu")(layers.Concatenate()(rows))
    return _compiled(keras.Model((users, things), layers.Dense(CLASSES, "softmax")(x)))


def _numbers(*shape: int) -> Callable[[Any, int], Any]:
    return lambda rng, count: rng.random((count, *shape), "float32")


def _words(rng: Any, count: int) -> Any:
    return rng.integers(8000, size=(count, 128), dtype="int32")


def _pairs(rng: Any, count: int) -> Any:
    return tuple(rng.integers(500_000, size=(2, count), dtype="int32"))


MODELS = {
    "dense": Model(dense, _numbers(4096), 32),
    "cnn": Model(cnn, _numbers(64, 64, 3), 384),
    "cnn_xla": Model(partial(cnn, xla=True), _numbers(64, 64, 3), 384),
    "transformer": Model(transformer, _words, 96),
    "remat": Model(partial(transformer, remat=True), _words, 96),
    "bfloat16": Model(partial(transformer, policy="mixed_bfloat16"), _words, 96),
    "lstm": Model(recurrent, _numbers(100, 64), 512),
    "gru": Model(partial(recurrent, "GRU"), _numbers(100, 64), 512),
    "normalized": Model(normalized, _numbers(256), 8192),
    "tables": Model(tables, _pairs, 128),
}
