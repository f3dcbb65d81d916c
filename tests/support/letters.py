"""Programs whose outcome replicas must not change, each the same for a plain and a distributed model.

Every letter builds a compiled model, trains it with `fit`, and returns arrays by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

from tests.support.models import dense_data, dense_model


@dataclass(frozen=True)
class Letter:
    """`build` makes a compiled model; `run` takes what has `fit` and the model behind it."""

    letter: str
    title: str
    build: Callable[[], keras.Model]
    run: Callable[..., dict[str, np.ndarray]]

    def __str__(self) -> str:
        return self.letter


def _weights(model: keras.Model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in model.weights}


def _compiled(model: keras.Model, optimizer, loss="mse") -> keras.Model:
    model.compile(optimizer, loss, jit_compile=False)
    return model


def _clipped(**clip) -> Callable[[], keras.Model]:
    return lambda: _compiled(dense_model(), keras.optimizers.SGD(0.5, name="sgd", **clip))


def _fit_even(front, model) -> dict[str, np.ndarray]:
    data = dense_data(16)
    front.fit(data.x, data.y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return _weights(model)


def _fit_uneven(front, model) -> dict[str, np.ndarray]:
    data = dense_data(11)
    front.fit(data.x, data.y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return _weights(model)


def _normalized() -> keras.Model:
    layers = [keras.Input((2,), name="x"), keras.layers.BatchNormalization(momentum=0.5, name="norm"),
              keras.layers.Dense(1, name="out")]  # fmt: skip
    return _compiled(keras.Sequential(layers, name="normalized"), keras.optimizers.SGD(0.0, name="sgd"))


def _fit_zeros_then_ones(front, model) -> dict[str, np.ndarray]:
    """The first half of each batch is zero, the second one; the mean of a mean over halves is the whole's."""
    x = np.repeat([[0.0, 0.0], [1.0, 1.0]], 4, axis=0)
    front.fit(x, np.zeros((8, 1)), batch_size=8, epochs=1, shuffle=False, verbose=0)
    return {"moving_mean": model.get_layer("norm").moving_mean.numpy()}


def _scaled() -> keras.Model:
    inner = keras.optimizers.SGD(0.1, name="sgd")
    return _compiled(dense_model(), keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0, name="scaled"))


def _fit_one_infinite_row(front, model) -> dict[str, np.ndarray]:
    """The last row of the second batch belongs to the last replica; the whole step is skipped, the third is taken."""
    data = dense_data(24)
    x = np.array(data.x)
    x[15] = np.inf
    front.fit(x, data.y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    return _weights(model) | {"scale": np.array(model.optimizer.dynamic_scale)}


def _accumulated() -> keras.Model:
    return _compiled(dense_model(), keras.optimizers.Adam(0.05, gradient_accumulation_steps=2, name="adam"))


def _overwritten() -> keras.Model:
    optimizer = keras.optimizers.SGD(0.3, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2, name="sgd")
    return _compiled(dense_model(), optimizer)


FEATURES = 64


def _prediction(y_true, y_pred):
    return keras.ops.mean(y_pred, axis=-1)


def _dropped() -> keras.Model:
    layers = [keras.Input((FEATURES,), name="x"), keras.layers.Dropout(0.5, name="drop"),
              keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name="out")]  # fmt: skip
    return _compiled(keras.Sequential(layers, name="dropped"), keras.optimizers.SGD(1.0, name="sgd"), _prediction)


def fit_ones(front, model, examples: int = 2, steps: int = 3) -> dict[str, np.ndarray]:
    """What each step takes from the kernel is the mean of its examples' masks: 0, 1 or, where two differ, 1/2."""
    kept, before = {}, np.zeros(FEATURES)
    for step in range(steps):
        x = np.ones((examples, FEATURES))
        front.fit(x, np.zeros((examples, 1)), batch_size=examples, epochs=1, shuffle=False, verbose=0)
        after = -model.get_layer("out").kernel.numpy().ravel()
        kept[f"step {step}"] = (after - before) / 2.0
        before = after
    return kept


def _worded() -> keras.Model:
    inputs = keras.Input((3,), dtype="string", name="words")
    ids = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], name="lookup")(inputs)
    hidden = keras.layers.Flatten(name="flat")(keras.layers.Embedding(4, 2, name="table")(ids))
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(hidden), name="worded")
    return _compiled(model, keras.optimizers.Adam(0.01, name="adam"))


def _fit_words(front, model) -> dict[str, np.ndarray]:
    words = np.array(["red", "green", "blue", "pink"])[np.random.default_rng(1).integers(0, 4, (9, 3))]
    x, y = keras.ops.convert_to_tensor(words), np.linspace(-1.0, 1.0, 9)[:, None]
    front.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return _weights(model)


LETTERS = (
    Letter("A", "clipping by the norm of each variable", _clipped(clipnorm=0.1), _fit_even),
    Letter("A-global", "clipping by the norm of all variables", _clipped(global_clipnorm=0.1), _fit_even),
    Letter("A-value", "clipping of each entry", _clipped(clipvalue=0.02), _fit_even),
    Letter("B", "the overflow check of loss scaling", _scaled, _fit_one_infinite_row),
    Letter("C", "moving averages", _normalized, _fit_zeros_then_ones),
    Letter("D", "dropout masks", _dropped, fit_ones),
    Letter("E", "gradient accumulation", _accumulated, _fit_uneven),
    Letter("F", "averages that overwrite the weights", _overwritten, _fit_uneven),
    Letter("J", "string inputs", _worded, _fit_words),
    Letter("K", "an uneven last batch", lambda: _compiled(dense_model(), keras.optimizers.SGD(0.1, name="sgd")),
           _fit_uneven),
)  # fmt: skip

BY_LETTER = {letter.letter: letter for letter in LETTERS}
