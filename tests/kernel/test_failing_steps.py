"""A step that fails changes nothing: the state is that after the last whole step, and training goes on from it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_same
from tests.support.models import ready, stacked
from tests.support.training import distributed, seeded, trained

BATCH = 8
layers = keras.layers


class SameShape(layers.Layer):
    """A layer that is not called to know the shape of what it returns."""

    def compute_output_shape(self, shape):
        return shape


class Checked(SameShape):
    """Refuses large numbers."""

    def call(self, x):
        tf.debugging.assert_less(x, tf.constant(100.0, x.dtype), message="too large")
        return tf.identity(x)


class Finite(SameShape):
    """Refuses what is not a number, and counts how often it is traced."""

    traced = 0

    def call(self, x):
        Finite.traced += 1
        return tf.debugging.check_numerics(x, "not finite")


class FailsOnItsWayBack(SameShape):
    """Looks at large numbers when it is asked for its gradient, and not before."""

    def call(self, x):
        return tf.custom_gradient(lambda x: (tf.identity(x), lambda upstream: self.back(upstream, x)))(x)

    def back(self, upstream, x):
        place = tf.cast(tf.reduce_any(x > 100.0), "int32")
        return upstream * tf.gather(tf.ones(1, upstream.dtype), place)


class LosesARow(FailsOnItsWayBack):
    """Hands on too short a gradient where there are large numbers: what the tape does with it fails."""

    def back(self, upstream, x):
        return upstream[: tf.shape(upstream)[0] - tf.cast(tf.reduce_any(x > 100.0), "int32")]


class LooksUp(keras.Sequential):
    """Returns what fails on large numbers, and nothing else needs."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "looked up": _one_if_small(data[0])}


class HandsIn(keras.Sequential):
    """Hands the tape a gradient of the predictions, which is too short where there are large numbers."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = _the_same(self(x, training=True))
            added = tf.reduce_sum(self.losses)
        slope = (predictions - y)[: tf.shape(x)[0] - tf.cast(tf.reduce_any(x > 100.0), "int32")]
        handed_in = [slope, tf.ones((), slope.dtype)]
        gradients = tape.gradient([predictions, added], self.trainable_variables, output_gradients=handed_in)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"error": tf.reduce_mean(tf.abs(predictions - y))}


def _the_same(values: tf.Tensor) -> tf.Tensor:
    """The values, by products whose gradients take long and do not notice a missing row."""
    width = 1000
    wide = values @ tf.eye(1, width, dtype=values.dtype)
    for _ in range(10):
        wide = wide @ tf.eye(width, dtype=values.dtype)
    return wide @ tf.eye(width, 1, dtype=values.dtype)


def _one_if_small(values: tf.Tensor) -> tf.Tensor:
    """Fails on large numbers, and takes so long that whatever does not wait for it is done before."""
    late = tf.fill((500, 500), values[0, 0])
    for _ in range(10):
        late = tf.tanh(late @ late)  # not of a number that TensorFlow would compute in advance
    never, large = tf.cast(late[0, 0] > 2.0, "int32"), tf.cast(tf.reduce_any(values > 100.0), "int32")
    return tf.gather(tf.ones(1), large + never)


class Decays(SameShape):
    """Has a weight with a loss of its own: its gradient is there before the step has begun."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(2,), initializer="ones", name="weight")

    def call(self, x):
        self.add_loss(tf.reduce_sum(self.weight**2))
        return x


class FailsInAMetric(keras.metrics.Metric):
    """A metric that adds up what a function makes of the targets."""

    def __init__(self, function: Callable[[tf.Tensor], tf.Tensor]) -> None:
        super().__init__(name="fails")
        self.function = function
        self.total = self.add_variable((), initializer="zeros", name="total", aggregation="sum")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.cast(self.function(y_true), self.total.dtype))

    def result(self):
        return self.total


def _bounded(values: tf.Tensor) -> tf.Tensor:
    """Asserts that numbers are small."""
    with tf.control_dependencies([tf.debugging.assert_less(values, tf.constant(50.0, values.dtype), "metric")]):
        return tf.reduce_sum(values)


def _dense(
    *first: layers.Layer, metrics: Callable[[], list] = list, kind: type[keras.Sequential] = keras.Sequential
) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        stack = [Decays(name="decays"), *(layer.from_config(layer.get_config()) for layer in first)]
        tail = [layers.BatchNormalization(name="norm"), layers.Dense(1, name="out")]
        model = kind([keras.Input((3,), name="x"), *stack, *tail], name="model")
        return ready(model, _adam(), "mse", metrics=metrics() or None, jit_compile=False)

    return build


def _rows() -> keras.Model:
    table = layers.Embedding(4, 2, name="table")
    tail = [layers.Flatten(name="flat"), Decays(name="decays"), layers.Dense(1, name="out")]
    stack = [keras.Input((3,), dtype="int32", name="x"), table, *tail]
    return stacked(*stack, optimizer=_adam(), name="model", jit_compile=False)


def _adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01, name="adam")


@dataclass(frozen=True)
class Case:
    """A model, and what in an otherwise good batch makes its step fail."""

    build: Callable[[], keras.Model]
    message: str
    bad_x: float = 0.0
    bad_y: float = 0.0
    ids: bool = False

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Three batches, of which the last one is bad: at its end, so in the last replica's part."""
        random = np.random.default_rng(11)
        x, y = random.normal(size=(3 * BATCH, 3)), random.normal(size=(3 * BATCH, 1))
        if self.ids:
            x = random.integers(0, 4, x.shape).astype("int32")
        if self.bad_x:
            x[-2, 1] = self.bad_x
        if self.bad_y:
            y[-2, 0] = self.bad_y
        return x, y


CASES = {
    "lookup": Case(_rows, r"(?s)1000.*is not in \[0, 4\)", bad_x=1000, ids=True),
    "assertion": Case(_dense(Checked(name="checked")), "too large", bad_x=1000.0),
    "metric": Case(_dense(metrics=lambda: [FailsInAMetric(_bounded)]), "metric", bad_y=1000.0),
    "gradient": Case(
        _dense(layers.Dense(3, name="before"), FailsOnItsWayBack(name="back")), r"(?s)is not in \[0, 1\)", bad_x=1e6
    ),
    "row": Case(_dense(layers.Dense(3, name="before"), LosesARow(name="row")), "(?s)ncompatible", bad_x=1e6),
    "handed in": Case(_dense(layers.Dense(3, name="before"), kind=HandsIn), "(?s)ncompatible", bad_x=1e6),
    "result": Case(_dense(kind=LooksUp), r"(?s)is not in \[0, 1\)", bad_x=1e6),
    "metric's value": Case(
        _dense(metrics=lambda: [FailsInAMetric(_one_if_small)]), r"(?s)is not in \[0, 1\)", bad_y=1e6
    ),
    "not a number": Case(_dense(Finite(name="finite")), "not finite", bad_x=np.nan),
}


def _fit(front, x: np.ndarray, y: np.ndarray) -> dict[str, list[float]]:
    return front.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0).history


@cache
def _expected(name: str, replicas_see_their_own_statistics: bool) -> tuple[dict, dict]:
    """The state after the two good batches, and after the two once more; the bad one fails on one device too."""
    case = CASES[name]
    x, y = case.data()
    with pytest.raises(tf.errors.InvalidArgumentError, match=case.message):
        _fit(seeded(case.build), x, y)
    model = seeded(case.build)
    front = distributed(model) if replicas_see_their_own_statistics else model
    states = []
    for _ in range(2):
        _fit(front, x[: 2 * BATCH], y[: 2 * BATCH])
        states.append(trained(model).state)
    if front is not model:
        front.close()
    return states[0], states[1]


COMBINATIONS = [
    (name, builder, share_memory)
    for name in CASES for builder in ("AllReduce", "PS") for share_memory in (False, True)
    if name == "lookup" or share_memory == (builder == "PS")
]  # fmt: skip


@pytest.mark.quick("metric-AllReduce-False", "gradient-PS-True")
@pytest.mark.parametrize("name, builder, share_memory", COMBINATIONS)
def test_a_failing_step_leaves_the_state_of_the_step_before(name: str, builder: str, share_memory: bool):
    case = CASES[name]
    x, y = case.data()
    before, after = _expected(name, not case.ids)
    model = seeded(case.build)
    with distributed(model, strategy=builder, share_memory=share_memory) as front:
        with pytest.raises(tf.errors.InvalidArgumentError, match=case.message):
            _fit(front, x, y)
        assert_same(before, trained(model).state)
        history = _fit(front, x[: 2 * BATCH], y[: 2 * BATCH])
        assert_same(after, trained(model).state)
    assert all(np.isfinite(values).all() for values in history.values())


@pytest.mark.parametrize("builder", ["PS", "AllReduce"])
def test_after_a_failed_step_the_next_one_simply_runs(builder: str):
    """Also with collectives, of which the replica that failed has begun none."""
    case = CASES["not a number"]
    x, y = case.data()
    good = [slice(0, BATCH), slice(BATCH, 2 * BATCH)]
    model, plain = seeded(case.build), seeded(case.build)
    with distributed(model, strategy=builder, replicas=2) as front, distributed(plain) as other:
        with pytest.raises(tf.errors.InvalidArgumentError, match=case.message) as failure:
            front.train_on_batch(x[2 * BATCH :], y[2 * BATCH :])
        assert "\nThis happened on localhost:CPU:1, during training step 1 with examples" in str(failure.value)
        before = Finite.traced
        for rows in good:
            front.train_on_batch(x[rows], y[rows])
        assert Finite.traced == before
        for rows in good:
            other.train_on_batch(x[rows], y[rows])
        assert_same(trained(plain).state, trained(model).state)


def test_the_state_that_is_kept_is_a_trained_one():
    before, after = _expected("lookup", False)
    start = trained(seeded(_rows)).state
    for name in ("model/table/embeddings", "model/out/kernel"):
        assert np.abs(before[name] - start[name]).max() > 1e-3 and np.abs(after[name] - before[name]).max() > 1e-3
