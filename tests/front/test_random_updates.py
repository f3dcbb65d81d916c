"""Where random numbers must agree: in an update on all its owners, and in a backward pass with the forward pass."""

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.steps import DATA, gradients_of, stepping
from tests.support.compare import assert_same, named, relative_error
from tests.support.draws import FORMS
from tests.support.models import stacked
from tests.support.training import distributed, seeded

QUIET = {"verbose": 0, "batch_size": 7, "shuffle": False, "epochs": 3}


# Updates that draw


def _constant(owner, shape, dtype):
    return keras.random.normal(shape, dtype=dtype, seed=3)


def _from_seeds(owner, shape, dtype):
    return keras.random.normal(shape, dtype=dtype, seed=owner.seeds)


def _stateful(owner, shape, dtype):
    return tf.random.normal(shape, dtype=dtype)


def _in_a_function(owner, shape, dtype):
    return tf.function(lambda: tf.random.normal(shape, dtype=dtype) + _constant(owner, shape, dtype))()


NOISE = {"constant": _constant, "seeds": _from_seeds, "stateful": _stateful, "function": _in_a_function}


class Noisy(keras.optimizers.SGD):
    """Adds noise to every gradient."""

    def __init__(self, noise: Callable) -> None:
        super().__init__(0.1, momentum=0.5, name="noisy")
        self.noise, self.seeds = noise, keras.random.SeedGenerator(5)

    def update_step(self, gradient, variable, learning_rate):
        noise = self.noise(self, variable.shape, variable.dtype)
        super().update_step(gradient + 0.1 * noise, variable, learning_rate)


def _with_noise_in_the_step(noise: Callable) -> keras.Model:
    def step(model, data):
        noisy = [g + 0.1 * noise(model, g.shape, g.dtype) for g in gradients_of(model, data)]
        model.optimizer.apply(noisy, model.trainable_variables)

    def prepare(model):
        model.seeds = keras.random.SeedGenerator(5)

    return stepping(step, prepare)()


def _with_noise_in_the_optimizer(noise: Callable) -> keras.Model:
    def build():
        return stacked(
            keras.Input((5,)), keras.layers.Dense(4, "tanh", name="first"), keras.layers.Dense(3, name="second"),
            optimizer=Noisy(noise), name="plain", jit_compile=False,
        )

    return seeded(build)


UPDATES = [
    pytest.param(noise, where, builder, id=f"{noise}-{label}-{builder}")
    for noise in NOISE for builder in ("AllReduce", "PSLoadBalancing")
    for label, where in (("step", _with_noise_in_the_step), ("optimizer", _with_noise_in_the_optimizer))
    # Refused (tests/capture/test_refused.py): a replica without examples does not advance the step's own generator.
    if (noise, label, builder) != ("seeds", "step", "AllReduce")
]


@pytest.mark.quick("constant-step-PSLoadBalancing")
@pytest.mark.parametrize("noise, where, builder", UPDATES)
def test_an_update_that_draws_is_one_devices(noise: str, where: Callable, builder: str):
    # Batches of seven, seven and one: the last one leaves all replicas idle but the first. Stateful operations begin
    # anew where Keras traces a step for another size of batches.
    data = DATA.rows(np.arange(15 if noise in ("constant", "seeds") else 14))
    plain, model = where(NOISE[noise]), where(NOISE[noise])
    plain.fit(data.x, data.y, **QUIET)
    with distributed(model, replicas=3, strategy=builder) as front:
        front.fit(data.x, data.y, **QUIET)
    assert_same(named(plain.trainable_variables), named(model.trainable_variables))


# Forward and backward passes


def _recomputed(how: Callable) -> Callable:
    def product(layer, x, weight):
        return how(lambda x, weight: x * weight * FORMS["keras"](layer, x) * FORMS["deep"](layer, x))(x, weight)

    return product


def _drawn_in(form: str) -> Callable:
    return lambda layer, x, weight: x * weight * tf.cast(FORMS[form](layer, x), x.dtype)


def _multiplied_inside(form: str) -> Callable:
    """The product stands in the body, and so does its gradient's part."""
    def product(layer, x, weight):
        if form == "function":
            return tf.function(lambda x, weight: x * weight * FORMS["map"](layer, x))(x, weight)
        if form == "loop":
            # The first round multiplies by one, the second by what it draws.
            return tf.while_loop(
                lambda count, _: count < 2,
                lambda count, value: (count + 1, value * FORMS["stateful loop"](layer, x)),
                (0, x * weight), parallel_iterations=1,
            )[1]  # fmt: skip
        return tf.cond(tf.reduce_sum(x) < 1e6, lambda: x * weight * FORMS["function"](layer, x), lambda: x * weight)

    return product


PRODUCTS = {
    "keras.remat": _recomputed(keras.remat),
    "tf.recompute_grad": _recomputed(tf.recompute_grad),
    **{form: _drawn_in(form) for form in ("keras", "map", "function", "stateful deep", "switch")},
    **{f"inside a {form}": _multiplied_inside(form) for form in ("function", "loop", "condition")},
}


class Product(keras.layers.Layer):
    """A weight for each feature, times random numbers."""

    def __init__(self, product: Callable) -> None:
        super().__init__(name="product")
        self.product, self.seeds = product, keras.random.SeedGenerator(5)
        self.generator = tf.random.Generator.from_seed(11)

    def build(self, shape):
        self.weight = self.add_weight(shape=(shape[-1],), initializer="ones", name="weight")

    def call(self, x):
        return self.product(self, x, tf.convert_to_tensor(self.weight))


@pytest.mark.quick("keras.remat", "inside a loop")
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_backward_pass_has_the_numbers_of_the_forward_pass(name: str):
    """The loss is linear in the weights: it is the product of the weights and the gradient, which the update shows."""
    x = np.random.default_rng(4).normal(size=(6, 5)) + 2.0
    keras.utils.set_random_seed(8)
    model = keras.Sequential([keras.Input((5,)), Product(PRODUCTS[name])])
    model.compile(keras.optimizers.SGD(0.25), lambda y, predicted: tf.reduce_mean(predicted, -1), jit_compile=False)
    losses = []
    with distributed(model) as front:
        for _ in range(3):
            before = model.layers[-1].weight.numpy()
            losses.append(front.fit(x, x, batch_size=6, verbose=0).history["loss"][0])
            gradient = (before - model.layers[-1].weight.numpy()) / 0.25
            assert relative_error(losses[-1], float(before @ gradient)) <= 1e-12
    assert len(set(losses)) == 3
    with distributed(model, replicas=1) as front:
        alone = front.fit(x, x, batch_size=6, verbose=0).history["loss"][0]
    assert alone not in losses


# Rows that are drawn


class Sampled(keras.layers.Layer):
    """Adds rows of a table, drawn anew for each batch."""

    def __init__(self, draw: Callable) -> None:
        super().__init__(name="sampled")
        self.table = keras.layers.Embedding(64, 1, embeddings_initializer="zeros", name="table")
        self.draw, self.seeds = draw, keras.random.SeedGenerator(5)

    def call(self, x):
        rows = self.table(self.draw(self))
        return tf.reduce_sum(rows) + 0 * x[:, :1]


ROWS = {
    "seeds": lambda layer: keras.random.randint((8,), 0, 64, seed=layer.seeds),
    "constant": lambda layer: keras.random.randint((8,), 0, 64, seed=7),
    "function": lambda layer: tf.function(lambda: tf.random.uniform((8,), 0, 64, tf.int32))(),
}


@pytest.mark.quick("seeds-AllReduce", "constant-PS")
@pytest.mark.parametrize("builder", ["AllReduce", "PS"])
@pytest.mark.parametrize("rows", ROWS)
def test_each_replica_trains_the_rows_that_it_has_drawn(rows: str, builder: str):
    """The loss is the mean of the sum of the rows drawn: each draw of a row moves it by the replica's part."""
    def trained(front_of: Callable, examples: int) -> np.ndarray:
        keras.utils.set_random_seed(8)
        model = keras.Sequential([keras.Input((5,)), Sampled(ROWS[rows])])
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: tf.reduce_mean(p, -1), jit_compile=False)
        x = np.ones((examples, 5))
        front_of(model).fit(x, x, batch_size=examples, verbose=0)
        return -model.layers[-1].table.embeddings.numpy()[:, 0]

    alone, fronts = trained(lambda model: model, 3), []

    def front_of(model):
        fronts.append(distributed(model, strategy=builder))
        return fronts[-1]

    both = trained(front_of, 4)
    fronts[0].close()
    second = 2 * both - alone
    assert np.all(np.abs(second - np.round(second)) < 1e-12)
    assert second.min() >= 0 and abs(second.sum() - 8) < 1e-9
    # The batch has no part in the draw from the constant seed, so it is the same on one device and on all replicas.
    assert np.array_equal(np.round(second), alone) == (rows == "constant")
