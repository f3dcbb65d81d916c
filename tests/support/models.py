"""The table of reference models that the cross-product tests draw from: tiny, float64, without parameters whose
true gradient is zero (those amplify rounding without bound, so that no tolerance would mean anything)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from tests.support.optimizers import make_optimizer
from tests.support.steps import Adversarial, AppliesTwice, OwnStep, SlicedStep

EXAMPLES = 22
BATCH = 7
"""22 examples in batches of 7: no batch divides by two or three, and the last one has a single example."""


@dataclass(frozen=True)
class Data:
    """Whole arrays (or dicts of arrays) as `fit` takes them."""

    x: Any
    y: Any
    sample_weight: Any = None

    def rows(self, index) -> Data:
        """The same data, with only these rows, in this order."""
        take = lambda array: None if array is None else array[index]  # noqa: E731
        return Data(*(keras.tree.map_structure(take, part) for part in (self.x, self.y, self.sample_weight)))


def stacked(*layers, optimizer: Any = "sgd", loss: Any = "mse", name: Any = None, **settings) -> keras.Sequential:
    """A compiled model of these layers, one after the other."""
    return ready(keras.Sequential(list(layers), name=name), optimizer, loss, **settings)


def ready(model: keras.Model, *optimizer_and_loss: Any, **settings: Any) -> keras.Model:
    """The model, compiled with these arguments."""
    model.compile(*optimizer_and_loss, **settings)
    return model


def _settings(**settings) -> Callable[[], dict]:
    return lambda: dict(settings)


def _logits_settings() -> dict:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="crossentropy")
    return {"loss": loss, "metrics": ["accuracy"]}


@dataclass(frozen=True)
class ReferenceModel:
    """One model, its data, and what it is compiled with besides the optimizer."""

    name: str
    build: Callable[[], keras.Model]
    data: Callable[[], Data]
    settings: Callable[[], dict]
    second_optimizer: str = ""
    reference: Callable[[int], keras.Model] | None = None
    """One-device stand-in for so many replicas, where the model itself is not it."""

    def __str__(self) -> str:
        return self.name

    def compile_arguments(self, optimizer: str) -> dict:
        """Fresh arguments of `compile`, with an optimizer of the table; without XLA one replica is bit-equal."""
        arguments = {"optimizer": make_optimizer(optimizer), "jit_compile": False, **self.settings()}
        if self.second_optimizer:
            arguments[self.second_optimizer] = make_optimizer(optimizer)
        return arguments

    def compiled_with(self, settings: Callable[[], dict]) -> ReferenceModel:
        """The same model and data, compiled with these fresh arguments before its own."""
        return replace(self, settings=lambda: {**self.settings(), **settings()})

    def on_one_device_as(self, replicas: int) -> ReferenceModel:
        """What one device computes where the model's batch statistics are each replica's own; else itself."""
        stand_in = self.reference
        if replicas == 1 or stand_in is None:
            return self
        return replace(self, build=lambda: stand_in(replicas)).compiled_with(lambda: {"run_eagerly": True})


def _random(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def dense_model(name: str = "dense") -> keras.Model:
    """Two hidden layers and one output."""
    dense = keras.layers.Dense
    return keras.Sequential(
        [
            keras.Input((5,), name="x"),
            dense(8, activation="tanh", name="first"),
            dense(6, activation="relu", name="second"),
            dense(1, name="out"),
        ],
        name=name,
    )


def dense_data(examples: int = EXAMPLES) -> Data:
    """A smooth target of five features."""
    x = _random().normal(size=(examples, 5))
    return Data(x, np.sin(x.sum(axis=1, keepdims=True)) + 0.3 * x[:, :1])


def even_data() -> Data:
    """The same in three batches of one size, which need one graph: for tests that are not about the last batch."""
    return dense_data(3 * BATCH)


def trained_by(make: Callable[[], keras.optimizers.Optimizer]) -> ReferenceModel:
    """A small model, trained on even data by what `make` makes."""
    def build() -> keras.Model:
        first, out = keras.layers.Dense(4, activation="tanh", name="first"), keras.layers.Dense(2, name="out")
        return keras.Sequential([keras.Input((5,), name="x"), first, out], name="small")

    return ReferenceModel("small", build, even_data, lambda: {"loss": "mse", "optimizer": make()})


def _convolution(kind: type[keras.Model] = keras.Model) -> keras.Model:
    layers = keras.layers
    image = keras.Input((6, 6, 2), name="image")
    hidden = layers.Conv2D(4, 3, use_bias=False, name="conv")(image)
    hidden = layers.BatchNormalization(momentum=0.8, name="norm")(hidden)
    hidden = layers.Activation("tanh", name="tanh")(hidden)
    hidden = layers.Flatten(name="flat")(hidden)
    return kind(image, layers.Dense(3, name="out")(hidden), name="convolution")


def _sliced_convolution(replicas: int) -> keras.Model:
    model = _convolution(SlicedStep)
    model.replicas = replicas
    return model


def _convolution_data() -> Data:
    random = _random()
    return Data(random.normal(size=(EXAMPLES, 6, 6, 2)), random.integers(0, 3, EXAMPLES))


def _embedding() -> keras.Model:
    layers = keras.layers
    left, right = keras.Input((4,), dtype="int32", name="left"), keras.Input((3,), dtype="int32", name="right")
    wide, narrow = layers.Embedding(11, 4, name="wide"), layers.Embedding(11, 2, name="narrow")
    parts = [layers.Flatten(name=f"{table.name}_{ids.name}")(table(ids)) for table in (wide, narrow)
             for ids in (left, right)]  # fmt: skip
    hidden = layers.Dense(5, activation="tanh", name="hidden")(layers.Concatenate(name="all")(parts))
    return keras.Model([left, right], layers.Dense(1, name="out")(hidden), name="embedding")


def _embedding_data(examples: int = EXAMPLES) -> Data:
    random = _random()
    left, right = random.integers(0, 9, (examples, 4)), random.integers(2, 11, (examples, 3))
    target = np.cos(left.sum(axis=1, keepdims=True) - right.sum(axis=1, keepdims=True))
    return Data([left.astype("int32"), right.astype("int32")], target, random.uniform(0.2, 2.0, examples))


def _lstm() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((5, 3), name="x"), layers.LSTM(4, name="lstm"), layers.Dense(1, name="out")], name="lstm"
    )


def _lstm_data() -> Data:
    x = _random().normal(size=(EXAMPLES, 5, 3))
    return Data(x, x.mean(axis=(1, 2))[:, None] ** 2, _random(8).uniform(0.2, 2.0, EXAMPLES))


def several_heads() -> keras.Model:
    """Two inputs and two outputs, by name."""
    layers = keras.layers
    inputs = {"text": keras.Input((4,), name="text"), "image": keras.Input((6,), name="image")}
    hidden = layers.Concatenate(name="both")(
        [layers.Dense(5, activation="tanh", name=f"{name}_in")(value) for name, value in inputs.items()]
    )
    outputs = {
        "score": layers.Dense(1, name="score")(hidden),
        "label": layers.Dense(3, activation="softmax", name="label")(hidden),
    }
    return keras.Model(inputs, outputs, name="heads")


def several_heads_data(examples: int = EXAMPLES) -> Data:
    """Dicts of inputs and of targets."""
    random = _random()
    x = {"text": random.normal(size=(examples, 4)), "image": random.normal(size=(examples, 6))}
    y = {"score": x["text"][:, :1] * x["image"][:, :1], "label": random.integers(0, 3, examples)}
    return Data(x, y)


def several_heads_settings() -> dict:
    """A loss, a weight and a metric for each output."""
    return {
        "loss": {"score": "mse", "label": "sparse_categorical_crossentropy"},
        "loss_weights": {"score": 0.7, "label": 1.5},
        "metrics": {"score": ["mae"], "label": ["accuracy"]},
    }


def _adversarial_data() -> Data:
    random = _random()
    return Data(random.normal(size=(EXAMPLES, 3)), random.normal(1.0, 0.5, size=(EXAMPLES, 4)))


DENSE = ReferenceModel("dense", dense_model, dense_data, _settings(loss="mse", metrics=["mae"]))

MODELS = (
    DENSE,
    ReferenceModel(
        "convolution",
        _convolution,
        _convolution_data,
        _logits_settings,
        reference=_sliced_convolution,
    ),
    ReferenceModel("embedding", _embedding, _embedding_data, _settings(loss="mse", weighted_metrics=["mae"])),
    ReferenceModel("lstm", _lstm, _lstm_data, _settings(loss="mse", weighted_metrics=["mae"])),
    ReferenceModel("heads", several_heads, several_heads_data, several_heads_settings),
    ReferenceModel("own_step", OwnStep, dense_data, _settings()),
)

TWICE = (
    ReferenceModel("applies_twice", lambda: AppliesTwice(name="applies_twice"), dense_data, _settings()),
    ReferenceModel(
        "adversarial",
        Adversarial,
        _adversarial_data,
        _settings(),
        second_optimizer="critic_optimizer",
    ),
)
"""Models whose step applies gradients twice: once more with one optimizer, and with an optimizer for each half."""

BY_NAME = {model.name: model for model in MODELS + TWICE}
