"""Ways in which a layer can draw random numbers, and a model that keeps what each of them drew."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.models import stacked
from tests.support.training import seeded

FEATURES = 5
EACH = 3
"""Examples of one replica in one step."""

Draw = Callable[[Any, tf.Tensor], tf.Tensor]
"""Makes numbers of the shape of a tensor; the layer has a `generator` and a `seeds`."""


def _in_a_map(draw: Draw) -> Draw:
    # Iterations that run at the same time would take the numbers of one stream in any order, on one device too.
    return lambda layer, x: tf.map_fn(lambda row: draw(layer, row), x, parallel_iterations=1)


def _in_a_loop(draw: Draw) -> Draw:
    def loop(layer, x):
        return tf.while_loop(
            lambda count, total: count < 3, lambda count, total: (count + 1, total + draw(layer, x)),
            (0, tf.zeros_like(x)), parallel_iterations=1,
        )[1]  # fmt: skip

    return loop


def _in_a_condition(draw: Draw) -> Draw:
    return lambda layer, x: tf.cond(tf.reduce_sum(x) < 1e6, lambda: draw(layer, x), lambda: -x)


def _in_a_switch(draw: Draw) -> Draw:
    def switch(layer, x):
        return tf.switch_case(tf.shape(x)[0] - EACH, [lambda: draw(layer, x), lambda: -x, lambda: 2 * x])

    return switch


def _in_a_function(draw: Draw) -> Draw:
    return lambda layer, x: tf.function(lambda value: draw(layer, value), autograph=False)(x)


def _of_keras(layer, x):
    return keras.random.normal(tf.shape(x), seed=1, dtype=x.dtype)


def _stateless(layer, x):
    return tf.random.stateless_uniform(tf.shape(x), [3, 4], dtype=x.dtype)


def _stateful(layer, x):
    return tf.random.uniform(tf.shape(x), dtype=x.dtype)


def _normal(layer, x):
    return tf.random.normal(tf.shape(x), dtype=x.dtype)


def _shuffled(layer, x):
    rows = tf.range(40)
    return tf.reshape(tf.random.experimental.stateless_shuffle(rows, [7, 7])[: EACH * FEATURES], tf.shape(x))


FORMS: dict[str, Draw] = {
    "keras": _of_keras,
    "stateless": _stateless,
    "map": _in_a_map(_stateful),
    "function": _in_a_function(_normal),
    "top": _normal,
    "generator": lambda layer, x: layer.generator.normal(tf.shape(x), dtype=x.dtype),
    "seeds": lambda layer, x: keras.random.uniform(tf.shape(x), dtype=x.dtype, seed=layer.seeds),
    "binomial": lambda layer, x: tf.random.stateless_binomial(tf.shape(x), [1, 2], 1000.0, 0.5),
    "categorical": lambda layer, x: tf.random.stateless_categorical(tf.zeros((EACH, 50)), FEATURES, [5, 6]),
    "gamma": lambda layer, x: tf.random.stateless_gamma(tf.shape(x), [8, 9], 2.0),
    "poisson": lambda layer, x: tf.random.stateless_poisson(tf.shape(x), tf.constant([8, 9], tf.int64), 90.0),
    "truncated": lambda layer, x: keras.random.truncated_normal(tf.shape(x), seed=4),
    "integers": lambda layer, x: keras.random.randint(tf.shape(x), 0, 1000, seed=4),
    "philox": lambda layer, x: tf.random.stateless_normal(tf.shape(x), [1, 2], alg="philox"),
    "split": lambda layer, x: tf.random.stateless_normal(tf.shape(x), tf.random.split([1, 2], 3)[2]),
    "shuffled": _shuffled,
    "loop": _in_a_loop(_stateless),
    "stateful loop": _in_a_loop(_stateful),
    "condition": _in_a_condition(_of_keras),
    "stateful condition": _in_a_condition(_stateful),
    "switch": _in_a_switch(_stateless),
    "stateful switch": _in_a_switch(_normal),
    "deep": _in_a_function(_in_a_condition(_in_a_map(_in_a_loop(_in_a_function(_stateless))))),
    "stateful deep": _in_a_loop(_in_a_function(_in_a_condition(_in_a_map(_stateful)))),
    "generator in a loop": _in_a_loop(lambda layer, x: layer.generator.uniform(tf.shape(x), dtype=x.dtype)),
    "seeds in a function": _in_a_function(
        lambda layer, x: keras.random.dropout(tf.ones_like(x), 0.5, seed=layer.seeds)
    ),
}


EXPLICIT = {
    "keras", "stateless", "binomial", "gamma", "poisson", "truncated", "integers", "philox", "split", "loop",
    "condition", "switch",
}  # fmt: skip
"""The forms that draw from explicit seeds, in the size of the batch. One device draws once, for the whole batch."""

OF_ALL = {"categorical", "shuffled", "deep"}
"""The forms that draw from explicit seeds, and of which the batch is no part: all replicas draw the same."""


class Drawing(keras.layers.Layer):
    """Draws in each of the forms, keeps replica 0's numbers and the sum of all replicas', and hands its input on."""

    def __init__(self, forms: dict[str, Draw], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.forms = forms
        self.generator = tf.random.Generator.from_seed(11)
        self.seeds = keras.random.SeedGenerator(12)

    def build(self, shape: Any) -> None:
        for name in self.forms:
            for of, aggregation in (("first", "only_first_replica"), ("sum", "sum")):
                setattr(self, f"{of} {name}", self.add_weight(
                    name=f"{of} {name}".replace(" ", "_"), shape=(EACH, FEATURES), initializer="zeros",
                    trainable=False, dtype="float64", autocast=False, aggregation=aggregation,
                ))  # fmt: skip

    def call(self, x: Any) -> Any:
        total = 0.0
        for name, draw in self.forms.items():
            drawn = tf.ensure_shape(tf.cast(draw(self, x), tf.float64), (EACH, FEATURES))
            getattr(self, f"first {name}").assign(drawn)
            getattr(self, f"sum {name}").assign(drawn)
            total = total + tf.tanh(tf.reduce_mean(drawn))
        return x + tf.cast(total, x.dtype)


def drawing_model(forms: dict[str, Draw]) -> keras.Model:
    """A compiled model with such a layer."""
    def build() -> keras.Model:
        layers = [keras.Input((FEATURES,)), Drawing(forms, name="drawing"), keras.layers.Dense(1, name="out")]
        return stacked(*layers, optimizer=keras.optimizers.SGD(1e-3), name="draws", jit_compile=False)

    return seeded(build)


def drawn(front: Any, model: keras.Model, replicas: int, steps: int = 3) -> dict[str, list[np.ndarray]]:
    """What was drawn in each step of a fit: by the first replica, and by all together."""
    layer = model.get_layer("drawing")
    found: dict[str, list[np.ndarray]] = {}

    def look(*_: Any, **__: Any) -> None:
        for name in layer.forms:
            for of in ("first", "sum"):
                found.setdefault(f"{of} {name}", []).append(getattr(layer, f"{of} {name}").numpy())

    rows = EACH * replicas
    front.fit(
        np.ones((rows * steps, FEATURES)), np.ones((rows * steps, 1)), batch_size=rows, shuffle=False, verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=look)],
    )  # fmt: skip
    return found
