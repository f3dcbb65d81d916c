"""Models with training steps that are put together by chance, of what people write in theirs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.models import BATCH, EXAMPLES, Data
from tests.support.optimizers import BY_NAME as OPTIMIZERS
from tests.support.strategies import BUILDERS

layers = keras.layers
LENGTH, WORDS, WIDTH = 4, 9, 5


@dataclass(frozen=True)
class Drawn:
    """One choice of each kind; `Drawn.of(seed)` always makes the same ones."""

    body: str
    loss: str
    gradients: str
    treatment: str
    applying: str
    optimizer: str
    watching: str
    builder: str
    replicas: int
    share_memory: bool

    @classmethod
    def of(cls, seed: int) -> Drawn:
        """The choices of a seed."""
        chance = random.Random(seed)
        return cls(**{field.name: chance.choice(list(CHOICES[field.name])) for field in fields(cls)})


class DrawnModel(keras.Model):
    """Features and words to one number, with the layers and the training step of some choices."""

    def __init__(self, choices: Drawn) -> None:
        super().__init__(name="drawn")
        self.choices = choices
        regularizer = keras.regularizers.L2(0.01) if choices.loss == "regularized" else None
        self.first = layers.Dense(WIDTH, activation="tanh", name="first", kernel_regularizer=regularizer)
        self.table = layers.Embedding(WORDS, WIDTH, name="table")
        self.places = layers.Embedding(LENGTH, WIDTH, name="places")
        self.normalization = layers.LayerNormalization(name="normalization")
        self.recurrent = layers.LSTM(WIDTH, name="recurrent")
        self.last = layers.Dense(1, name="last")
        self.tracker = keras.metrics.Mean(name="tracker")
        self.watched = keras.metrics.Mean(name="watched")
        self.running = self.add_weight(shape=(), initializer="ones", trainable=False, name="running")
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def build(self, input_shape):
        """All layers, those too that are not in use."""
        self.first.build((None, 3))
        for layer in (self.table, self.places, self.normalization):
            layer.build((None, WIDTH))
        self.recurrent.build((None, LENGTH, WIDTH))
        self.last.build((None, WORDS + WIDTH if self.choices.body == "tied" else WIDTH))
        self.built = True

    def compile(self, optimizer, second_optimizer, **settings):
        super().compile(optimizer=optimizer, **settings)
        self.second_optimizer = second_optimizer

    @property
    def metrics(self):
        return [self.tracker, self.watched]

    def call(self, x):
        return self.last(BODIES[self.choices.body](self, x["words"], self.first(x["features"])))

    def train_step(self, data):
        x, y = data
        logs = {}
        for turn in range(2 if self.choices.applying == "twice" else 1):
            gradients = GRADIENTS[self.choices.gradients](self, x, y)
            treated = TREATMENTS[self.choices.treatment](gradients, self.trainable_variables)
            logs |= {f"{name}{turn}": value for name, value in WATCHING[self.choices.watching](self, treated).items()}
            APPLYING[self.choices.applying](self, treated)
        self.steps.assign_add(1.0)
        return {"tracker": self.tracker.result(), "watched": self.watched.result(), **logs}

    def loss_of(self, x, y):
        """The loss of a batch; its examples' squares are tracked, unless that were in a nested function."""
        squares = tf.reduce_mean(tf.square(self(x, training=True) - y), axis=-1)
        if self.choices.gradients != "in a function":
            self.tracker.update_state(squares)
        return LOSSES[self.choices.loss](self, x, y, squares)


def build(choices: Drawn) -> DrawnModel:
    """The model of some choices, built."""
    model = DrawnModel(choices)
    model.build(None)
    return model


def compiling(choices: Drawn) -> dict[str, Any]:
    """What to compile it with."""
    return {
        "optimizer": CHOICES["optimizer"][choices.optimizer](),
        "second_optimizer": keras.optimizers.SGD(0.05, momentum=0.5, name="second_optimizer"),
        "loss": "mse", "jit_compile": False,
    }


def data() -> Data:
    """Features, words, and a target of both."""
    chance = np.random.default_rng(7)
    features, words = chance.normal(size=(EXAMPLES, 3)), chance.integers(0, WORDS, (EXAMPLES, LENGTH))
    words = words.astype("int32")
    return Data({"features": features, "words": words}, np.sin(features.sum(axis=1) + words[:, 0])[:, None])


def _rows(model, words, hidden):
    return hidden + tf.reduce_mean(model.table(words), axis=1)


def _places(model, words, hidden):
    rows = model.table(words) + model.places(tf.range(LENGTH))
    return hidden + tf.reduce_max(rows, axis=1)


def _tied(model, words, hidden):
    """One table for reading and for what a matrix product makes of it."""
    words_alike = tf.nn.softmax(tf.matmul(hidden, model.table.embeddings, transpose_b=True))
    return tf.concat([words_alike, tf.reduce_mean(model.table(words), axis=1)], axis=-1)


def _recurrent(model, words, hidden):
    return hidden * model.recurrent(model.table(words))


def _normalized(model, words, hidden):
    return model.normalization(_rows(model, words, hidden))


def _in_function(model, words, hidden):
    @tf.function
    def inner(words, hidden):
        return tf.nn.gelu(hidden) + tf.reduce_mean(model.table(words), axis=1)

    return inner(words, hidden)


def _recomputed(model, words, hidden):
    return tf.recompute_grad(lambda hidden: tf.nn.gelu(hidden) * tf.tanh(hidden))(_rows(model, words, hidden))


def _looped(model, words, hidden):
    def step(index, value):
        return index + 1, tf.tanh(value + model.table(words[:, index]))

    return tf.while_loop(lambda index, _: index < LENGTH, step, (tf.constant(0), hidden))[1]


BODIES: dict[str, Callable[[DrawnModel, Any, Any], Any]] = {
    "plain": lambda model, words, hidden: hidden, "rows": _rows, "places": _places, "tied": _tied,
    "recurrent": _recurrent, "normalized": _normalized, "in a function": _in_function, "recomputed": _recomputed,
    "looped": _looped,
}

LOSSES: dict[str, Callable[[DrawnModel, Any, Any, Any], Any]] = {
    "mean": lambda model, x, y, squares: tf.reduce_mean(squares),
    "compute_loss": lambda model, x, y, squares: model.compute_loss(x, y, model(x, training=True)),
    "scaled": lambda model, x, y, squares: model.optimizer.scale_loss(tf.reduce_mean(squares)),
    "regularized": lambda model, x, y, squares: tf.reduce_mean(squares) + tf.add_n(model.losses),
    "of two terms": lambda model, x, y, squares: tf.reduce_mean(squares) + 0.3 * tf.reduce_mean(tf.sqrt(squares + 1)),
}


def _tape(model, x, y):
    with tf.GradientTape() as tape:
        loss = model.loss_of(x, y)
    return _whole(tape.gradient(loss, model.trainable_variables), model)


def _whole(gradients, model):
    """Zeros where there is none, as layers that are not in use have."""
    return [
        tf.zeros_like(variable) if gradient is None else gradient
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True)
    ]


def _dense(gradients):
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _symbolic(model, x, y):
    return _whole(tf.gradients(model.loss_of(x, y), model.trainable_variables), model)


def _made_in_function(model, x, y):
    @tf.function
    def inner():
        return _dense(_tape(model, x, y))

    return inner()


def _of_two_losses(model, x, y):
    return [one + 0.5 * other for one, other in zip(*(_dense(_tape(model, x, y)) for _ in range(2)), strict=True)]


def _persistent(model, x, y):
    with tf.GradientTape(persistent=True) as tape:
        loss = model.loss_of(x, y)
        other = 0.1 * tf.reduce_mean(tf.abs(model(x, training=True)))
        other = model.optimizer.scale_loss(other) if model.choices.loss == "scaled" else other
    parts = [_dense(_whole(tape.gradient(each, model.trainable_variables), model)) for each in (loss, other)]
    return [one + another for one, another in zip(*parts, strict=True)]


GRADIENTS: dict[str, Callable[[DrawnModel, Any, Any], list]] = {
    "tape": _tape, "symbolic": _symbolic, "in a function": _made_in_function, "of two tapes": _of_two_losses,
    "of a persistent tape": _persistent,
}

TREATMENTS: dict[str, Callable[[list, list], list]] = {
    "none": lambda gradients, variables: gradients,
    "halved": lambda gradients, variables: [0.5 * gradient for gradient in _dense(gradients)],
    "global norm": lambda gradients, variables: tf.clip_by_global_norm(gradients, 0.1)[0],
    "norm": lambda gradients, variables: [tf.clip_by_norm(gradient, 0.05) for gradient in gradients],
    "value": lambda gradients, variables: [tf.clip_by_value(each, -0.02, 0.02) for each in _dense(gradients)],
    "decayed": lambda gradients, variables: [
        gradient + 0.01 * variable.value for gradient, variable in zip(_dense(gradients), variables, strict=True)
    ],
    "finite": lambda gradients, variables: [
        tf.where(tf.math.is_finite(gradient), gradient, tf.zeros_like(gradient)) for gradient in _dense(gradients)
    ],
    "centralized": lambda gradients, variables: [
        gradient - 0.5 * tf.reduce_mean(gradient, axis=0) if gradient.shape.rank > 1 else gradient
        for gradient in _dense(gradients)
    ],
    "by layer": lambda gradients, variables: [
        gradient if index % 2 else tf.clip_by_norm(gradient, 0.05) for index, gradient in enumerate(gradients)
    ],
}


def _halves(model, gradients):
    half = len(gradients) // 2
    model.optimizer.apply(gradients[:half], model.trainable_variables[:half])
    model.second_optimizer.apply(gradients[half:], model.trainable_variables[half:])


APPLYING: dict[str, Callable[[DrawnModel, list], Any]] = {
    "once": lambda model, gradients: model.optimizer.apply(gradients, model.trainable_variables),
    "in pairs": lambda model, gradients: model.optimizer.apply_gradients(
        zip(gradients, model.trainable_variables, strict=True)
    ),
    "twice": lambda model, gradients: model.optimizer.apply(gradients, model.trainable_variables),
    "by two optimizers": _halves,
}


def _tracked(model, gradients):
    model.watched.update_state(tf.linalg.global_norm(gradients))
    return {}


def _running(model, gradients):
    model.running.assign(0.9 * model.running + 0.1 * tf.linalg.global_norm(gradients))
    return {"running": model.running + 0.0}


WATCHING: dict[str, Callable[[DrawnModel, list], dict]] = {
    "nothing": lambda model, gradients: {},
    "norm": lambda model, gradients: {"norm": tf.linalg.global_norm(gradients)},
    "largest": lambda model, gradients: {"largest": tf.reduce_max(tf.abs(_dense(gradients)[0]))},
    "rate": lambda model, gradients: {"rate": model.optimizer.learning_rate},
    "tracked": _tracked,
    "running": _running,
}

CHOICES: dict[str, Any] = {
    "body": BODIES, "loss": LOSSES, "gradients": GRADIENTS, "treatment": TREATMENTS, "applying": APPLYING,
    "optimizer": {name: optimizer.make for name, optimizer in OPTIMIZERS.items()} | {
        "clipping": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1, name="clipping"),
        "averaging": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, name="averaging"),
        "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, name="accumulating"),
        "scheduled": lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9), name="scheduled"
        ),
    },
    "watching": WATCHING, "builder": BUILDERS, "replicas": [2, 3], "share_memory": [False, True],
}  # fmt: skip
assert BATCH % 2 and BATCH % 3, "batches that divide test less"
