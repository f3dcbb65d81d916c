"""The workloads of the benchmarks: models with their optimizers, and random data of the shapes that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BATCH = 128
CLASSES = 10
_BATCHES = 8  # the number of different batches, which are repeated


@dataclass(frozen=True)
class Workload:
    """One model with its data.

    `make` returns the compiled model, and `draw` the data, given a random generator. `steps` is the number of steps of
    a turn. `floor` is the factor by which two replicas should be faster than `MirroredStrategy`.

    >>> WORKLOADS["one_layer"].title
    'one dense layer of 170 parameters, SGD'
    """

    title: str
    make: Callable[[], Any]
    draw: Callable[[Any], tuple[Any, Any]]
    steps: int
    floor: float = 1.5

    def dataset(self) -> Any:
        """Return an endless dataset of random batches, which are in memory."""
        import numpy as np
        import tensorflow as tf

        x, y = self.draw(np.random.default_rng(0))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)
        return data.cache().repeat().prefetch(2)


def _compiled(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def _labels(rng: Any) -> Any:
    return rng.integers(CLASSES, size=BATCH * _BATCHES)


def _images(size: int, channels: int) -> Callable[[Any], tuple[Any, Any]]:
    return lambda rng: (rng.random((BATCH * _BATCHES, size, size, channels), "float32"), _labels(rng))


def _vectors(width: int) -> Callable[[Any], tuple[Any, Any]]:
    return lambda rng: (rng.random((BATCH * _BATCHES, width), "float32"), _labels(rng))


def _cnn() -> Any:
    import keras
    from keras import layers

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


def _mlp() -> Any:
    import keras
    from keras import layers

    hidden = [layers.Dense(512, activation="relu") for _ in range(32)]
    return _compiled(
        keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(CLASSES, activation="softmax")]),
        keras.optimizers.Adam(1e-4),
    )


def _resnet() -> Any:
    import keras
    from keras import layers

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


_ROWS, _WIDTH = 200_000, 32


def _embeddings() -> Any:
    import keras
    from keras import layers

    users, things = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    x = layers.Concatenate()([layers.Embedding(_ROWS, _WIDTH)(users), layers.Embedding(_ROWS, _WIDTH)(things)])
    x = layers.Dense(64, activation="relu")(x)
    model = keras.Model((users, things), layers.Dense(CLASSES, activation="softmax")(x))
    return _compiled(model, keras.optimizers.SGD(0.1))


def _pairs(rng: Any) -> tuple[Any, Any]:
    users, things = rng.integers(_ROWS, size=(2, BATCH * _BATCHES), dtype="int32")
    return (users, things), _labels(rng)


def _one_layer() -> Any:
    import keras

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(CLASSES, activation="softmax")])
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy", jit_compile=False)
    return model


WORKLOADS = {
    "cnn": Workload("convolution + 11 M parameter dense layer, SGD", _cnn, _images(28, 1), steps=6),
    "mlp": Workload("33 dense layers, 8.4 M parameters, Adam", _mlp, _vectors(512), steps=8),
    "resnet": Workload("ResNet-20 on 32 x 32, SGD with momentum", _resnet, _images(32, 3), steps=3, floor=1.0),
    "embeddings": Workload("two 200k x 32 tables, SGD", _embeddings, _pairs, steps=40),
    "one_layer": Workload("one dense layer of 170 parameters, SGD", _one_layer, _vectors(16), steps=200),
}
OVERHEAD = "one_layer"
