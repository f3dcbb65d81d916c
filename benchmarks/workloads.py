"""The workloads of the benchmarks: models with their optimizers, and random data of the shapes that they take."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

BATCH = 128
CLASSES = 10
_BATCHES = 8  # the number of different batches, which are repeated


@dataclass(frozen=True)
class Workload:
    """One model with its data.

    `make` returns the compiled model, given Keras 3 or the legacy `tf_keras`, and `draw` the data, given a random
    generator. `steps` is the number of steps of a turn. `floor` is the factor by which two replicas should be faster
    than `MirroredStrategy`.

    >>> WORKLOADS["one_layer"].title
    'one dense layer of 170 parameters, SGD'
    """

    title: str
    make: Callable[[Any], Any]
    draw: Callable[[Any], tuple[Any, Any]]
    steps: int
    floor: float = 1.5

    def arrays(self) -> tuple[Any, Any]:
        """Return random inputs and labels of a few batches."""
        import numpy as np

        return self.draw(np.random.default_rng(0))

    def dataset(self, size: int = BATCH) -> Any:
        """Return an endless dataset of random batches of some size, which are in memory."""
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices(self.arrays()).batch(size, drop_remainder=True)
        return data.cache().repeat().prefetch(2)


def _compiled(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def _labels(rng: Any) -> Any:
    return rng.integers(CLASSES, size=BATCH * _BATCHES)


def _images(size: int, channels: int, batches: int = _BATCHES) -> Callable[[Any], tuple[Any, Any]]:
    count = BATCH * batches
    return lambda rng: (rng.random((count, size, size, channels), "float32"), rng.integers(CLASSES, size=count))


def _vectors(width: int) -> Callable[[Any], tuple[Any, Any]]:
    return lambda rng: (rng.random((BATCH * _BATCHES, width), "float32"), _labels(rng))


def _cnn(keras: Any) -> Any:
    layers = keras.layers
    return _compiled(
        keras.Sequential([
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.1),
            layers.Dense(2048, activation="relu"),
            layers.Dense(CLASSES, activation="softmax"),
        ]),
        keras.optimizers.SGD(0.01),
    )


def _mlp(keras: Any) -> Any:
    layers = keras.layers
    hidden = [layers.Dense(512, activation="relu") for _ in range(32)]
    return _compiled(
        keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(CLASSES, activation="softmax")]),
        keras.optimizers.Adam(1e-4),
    )


def _resnet(keras: Any) -> Any:
    layers = keras.layers

    def convolution(x: Any, filters: int, stride: int = 1, size: int = 3) -> Any:
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolution(inputs, 16))
    for filters in (16, 32, 64):
        for block in range(3):
            stride = 2 if filters > 16 and block == 0 else 1
            y = layers.ReLU()(convolution(x, filters, stride))
            y = convolution(y, filters)
            short = convolution(x, filters, stride, size=1) if stride > 1 else x
            x = layers.ReLU()(layers.Add()([short, y]))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))
    return _compiled(model, keras.optimizers.SGD(0.1, momentum=0.9))


_ROWS, _MANY, _WIDTH = 200_000, 2_000_000, 32


def _embeddings(keras: Any, things_rows: int = _ROWS) -> Any:
    layers = keras.layers
    users, things = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    x = layers.Concatenate()([layers.Embedding(_ROWS, _WIDTH)(users), layers.Embedding(things_rows, _WIDTH)(things)])
    x = layers.Dense(64, activation="relu")(x)
    model = keras.Model((users, things), layers.Dense(CLASSES, activation="softmax")(x))
    return _compiled(model, keras.optimizers.SGD(0.1))


def _pairs(rng: Any) -> tuple[Any, Any]:
    users, things = rng.integers(_ROWS, size=(2, BATCH * _BATCHES), dtype="int32")
    return (users, things), _labels(rng)


def _one_layer(keras: Any) -> Any:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(CLASSES, activation="softmax")])
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    return model


_WORDS, _LENGTH, _SIZE = 8_000, 64, 128


def _transformer(keras: Any, rows: int = _WORDS, size: int = _SIZE, blocks: int = 2, heads: int = 4) -> Any:
    layers = keras.layers

    class Likeness(layers.Layer):
        """The product with every row of a table: the output of a language model that shares its table of words."""

        def __init__(self, table: Any) -> None:
            super().__init__()
            self._table = table

        def call(self, x: Any) -> Any:
            import tensorflow as tf

            return tf.matmul(x, tf.convert_to_tensor(self._table.embeddings), transpose_b=True)

    words = keras.Input((_LENGTH,), dtype="int32")
    table = layers.Embedding(rows, size)
    x = table(words)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, size // heads)(y, y, use_causal_mask=True)])
        y = layers.Dense(4 * size, activation="relu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(size)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    model = keras.Model(words, Likeness(table)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=False)
    return model


def _sentences(rng: Any) -> tuple[Any, Any]:
    words = rng.integers(_WORDS, size=(BATCH * _BATCHES, _LENGTH + 1), dtype="int32")
    return words[:, :-1], words[:, -1]


def _resnet50(keras: Any, policy: str) -> Any:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.applications.ResNet50(weights=None, classes=CLASSES)
        return _compiled(model, keras.optimizers.SGD(0.01, momentum=0.9))
    finally:
        keras.config.set_dtype_policy(before)


def _small_mlp(keras: Any) -> Any:
    layers = keras.layers
    hidden = [layers.Dense(64, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((16,)), *hidden, layers.Dense(CLASSES, activation="softmax")])
    return _compiled(model, keras.optimizers.Adam(1e-3))


def _pictures(keras: Any) -> Any:
    layers = keras.layers
    return _compiled(
        keras.Sequential([
            keras.Input((82, 82, 3)),
            layers.Conv2D(16, 4, strides=4, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, activation="softmax"),
        ]),
        keras.optimizers.SGD(0.01),
    )


WORKLOADS = {
    "cnn": Workload("convolution + 11 M parameter dense layer, SGD", _cnn, _images(28, 1), steps=6),
    "mlp": Workload("33 dense layers, 8.4 M parameters, Adam", _mlp, _vectors(512), steps=8),
    "resnet": Workload("ResNet-20 on 32 x 32, SGD with momentum", _resnet, _images(32, 3), steps=3, floor=1.0),
    "embeddings": Workload("two 200k x 32 tables, SGD", _embeddings, _pairs, steps=40),
    "tables": Workload("tables of 200k x 32 and 2M x 32, SGD", partial(_embeddings, things_rows=_MANY), _pairs, 40),
    "transformer": Workload("transformer of 2 layers, its table tied, Adam", _transformer, _sentences, steps=4),
    "images": Workload("images of 10 MB for each batch, one convolution, SGD", _pictures, _images(82, 3), steps=6),
    "one_layer": Workload("one dense layer of 170 parameters, SGD", _one_layer, _vectors(16), steps=200),
}
ON_GPUS = {
    "small_mlp": Workload("4 dense layers, 10,000 parameters, Adam", _small_mlp, _vectors(16), steps=200),
    "transformer_100m": Workload(
        "transformer of 12 layers, 100 M parameters, Adam",
        partial(_transformer, rows=20_000, size=768, blocks=12, heads=12), _sentences, steps=6,
    ),
    "resnet50_bfloat16": Workload(
        "ResNet-50, mixed_bfloat16", partial(_resnet50, policy="mixed_bfloat16"), _images(224, 3, 2), steps=6
    ),
    "resnet50": Workload("ResNet-50, float32", partial(_resnet50, policy="float32"), _images(224, 3, 2), steps=6),
}
"""More workloads, which are for GPUs."""
STEPS = f"by the model: {', '.join(f'{name} {workload.steps}' for name, workload in WORKLOADS.items())}"
"""What the commands say of the number of steps of a turn."""
OVERHEAD = "one_layer"


def workload(name: str) -> Workload:
    """One workload by its name.

    >>> workload("small_mlp").steps
    200
    """
    return (WORKLOADS | ON_GPUS)[name]
