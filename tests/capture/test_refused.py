"""Steps that cannot be captured, or divided, are refused with all reasons, in one error, and change nothing."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError, NotYetError
from tests.capture.steps import DATA, assert_refused, compiled, gradients_of, stepping
from tests.support.compare import assert_same, named
from tests.support.layers import Does
from tests.support.models import DENSE, ReferenceModel, dense_data, even_data, ready
from tests.support.steps import OwnLoss, OwnStep
from tests.support.training import QUIET, assert_equal_training, distributed, seeded


def _apply(model: keras.Model, data: Any, change: Callable[[list], list] = lambda gradients: gradients) -> None:
    model.optimizer.apply(change(gradients_of(model, data)), model.trainable_variables)


def _in_conditional(model, data) -> None:
    gradients = gradients_of(model, data)

    def applied():
        model.optimizer.apply(gradients, model.trainable_variables)
        return 1

    tf.cond(tf.reduce_sum(gradients[0]) > 0.0, applied, lambda: 0)


def _in_loop(model, data) -> None:
    def body(index):
        _apply(model, data)
        return index + 1

    tf.while_loop(lambda index: index < 2, body, [tf.constant(0)])


def _in_function(model, data) -> None:
    gradients = gradients_of(model, data)
    tf.function(lambda: model.optimizer.apply(gradients, model.trainable_variables))()


def _twice_the_same(model, data) -> None:
    gradients, variables = gradients_of(model, data), model.trainable_variables
    model.optimizer.apply([*gradients, gradients[0]], [*variables, variables[0]])


def _counts(model, data) -> None:
    one = tf.zeros([1], tf.int64)
    model.counts.insert(one, model.counts.lookup(one) + 1)
    _apply(model, data)


def _takes_from_an_iterator(model, data) -> None:
    next(model.iterator)
    _apply(model, data)


def _enqueues(model, data) -> None:
    model.queue.enqueue(tf.reduce_mean(data[0]))
    _apply(model, data)


def _with_table(model) -> None:
    model.counts = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)


def _with_iterator(model) -> None:
    model.iterator = iter(tf.data.Dataset.range(1000))


def _with_queue(model) -> None:
    model.queue = tf.queue.FIFOQueue(100, [tf.float64])


NESTED = r"^SGD\.apply is called inside a loop, a conditional or a nested tf\.function of the training step\. Do it at"
RESOURCES = r"Of resources, only variables and immutable lookup tables can be distributed\.$"
REFUSED: dict[str, tuple[Callable[[], keras.Model], str]] = {
    "in a conditional": (stepping(_in_conditional), NESTED),
    "in a loop": (stepping(_in_loop), NESTED),
    "in a function": (stepping(_in_function), NESTED),
    "two gradients": (stepping(_twice_the_same), r"variable 'first/kernel' gets two gradients in one apply"),
    "mutable table": (stepping(_counts, _with_table), r"(?s)LookupTableInsertV2.*" + RESOURCES),
    "iterator": (stepping(_takes_from_an_iterator, _with_iterator), r"(?s)IteratorGetNext.*" + RESOURCES),
    "queue": (stepping(_enqueues, _with_queue), r"(?s)QueueEnqueueV2.*" + RESOURCES),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str):
    build, reason = REFUSED[name]
    builder = "PS" if len(name) % 2 else "AllReduce"
    assert_refused(build(), reason, strategy=builder, share_memory=bool(len(name) % 3))


def test_a_step_that_is_a_function_itself():
    class Decorated(OwnStep):
        """As some guides show it."""

        @tf.function
        def train_step(self, data):
            _apply(self, data)
            return {}

    assert_refused(compiled(Decorated), NESTED + r".*\(without a @tf\.function dec")


def _with_seed(model) -> None:
    model.noise = keras.random.SeedGenerator(5)


def _noisy(model, data) -> None:
    noisy = [g + keras.random.normal(g.shape, dtype=g.dtype, seed=model.noise) for g in gradients_of(model, data)]
    model.optimizer.apply(noisy, model.trainable_variables)


def test_replicas_do_not_draw_their_own_numbers_in_an_update():
    """They would part without a word. Where one owner updates, there is nothing to part."""
    model = stepping(_noisy, _with_seed)()
    assert_refused(model, r"draws random numbers at .* Use PS\(\)", NotYetError)
    before = model.get_weights()
    for options in ({"strategy": "PS"}, {"share_memory": True}):
        with distributed(model, **options) as front:
            front.fit(DATA.x, DATA.y, epochs=2, **QUIET)
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_a_variable_of_no_layer_is_trained_all_the_same():
    """One device trains it, so replicas do."""
    outcomes = []
    for front_of in (lambda model: model, distributed):
        factor = tf.Variable(2.0, dtype=tf.float64, name="factor")

        def step(model, data, factor=factor):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(factor * model(x, training=True) - y))
            variables = [*model.trainable_variables, factor]
            model.optimizer.apply(tape.gradient(loss, variables), variables)

        model = stepping(step)()
        front_of(model).fit(DATA.x, DATA.y, epochs=2, **QUIET)
        outcomes.append({**named(model.weights), "factor": factor.numpy()})
    assert_same(*outcomes)
    assert abs(outcomes[0]["factor"] - 2.0) > 1e-3


def _prepare(model: keras.Model) -> None:
    model.queue = tf.queue.FIFOQueue(100, [tf.float64])
    model.noise = keras.random.SeedGenerator(5)


def _writes(model, data) -> None:
    _apply(model, data)
    for layer in (model.first, model.second):
        layer.kernel.assign(layer.kernel + tf.reduce_mean(data[0]))
    model.optimizer.learning_rate.assign(0.9 * model.optimizer.learning_rate)


def _fewer_digits(gradient: Any) -> Any:
    return tf.cast(tf.cast(64.0 * gradient, "int32"), gradient.dtype) / 64.0


def _rounds_and_writes(model, data) -> None:
    _apply(model, data, lambda gradients: [*map(_fewer_digits, gradients[:2]), *gradients[2:]])
    model.queue.enqueue(tf.reduce_mean(data[0]))
    model.first.kernel.assign(model.first.kernel + tf.reduce_mean(data[0]))


def _of_the_batch(model, data) -> None:
    largest = tf.reduce_max(data[0]) + tf.reduce_max(data[1]) + model.tracker.result()
    _apply(model, data, lambda gradients: [gradient / largest for gradient in gradients])


def _with_noise(model, data) -> None:
    noisy = lambda g: g + keras.random.normal(g.shape, dtype=g.dtype, seed=model.noise)  # noqa: E731
    _apply(model, data, lambda gradients: [*map(noisy, gradients)])


WRITTEN = "is written outside an optimizer, with a value that needs the batch or random numbers"
TOGETHER: dict[str, tuple[Callable, str, type[Exception], list[str]]] = {
    "writes": (_writes, "PartitionedPS", CaptureError, [
        f"trainable variable 'first/kernel' {WRITTEN}", f"trainable variable 'second/kernel' {WRITTEN}",
        "optimizer variable 'optimizer/sgd/learning_rate' is written outside optimizer.apply; use a learning rate",
    ]),
    "gradients, a queue and a weight": (_rounds_and_writes, "AllReduce", CaptureError, [
        "the gradient of 'first/kernel' is transformed by", "the gradient of 'first/bias' is transformed by",
        "the step captures <tf.Tensor", f"trainable variable 'first/kernel' {WRITTEN}",
    ]),
    "values of the batch": (_of_the_batch, "AllReduce", CaptureError, [
        "reads the step's input 'input_0' and 'input_1', and a replica has only its slice of the batch",
        "a value computed from gradients reads 'metric/squares/count'",
        "a value computed from gradients reads 'metric/squares/total'",
    ]),
    "random numbers": (_with_noise, "AllReduce", NotYetError, ["the update draws random numbers at"] * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_all_reasons_come_at_once_and_from_the_plan_too(name: str):
    step, strategy, kind, reasons = TOGETHER[name]
    model = stepping(step, _prepare)()
    with distributed(model, strategy=strategy, share_memory=False) as front, pytest.raises(kind) as planned:
        front.plan(DATA.x, DATA.y)
    texts = [str(planned.value), assert_refused(model, " problems:", kind, strategy=strategy, share_memory=False)]
    first, *lines = texts[0].splitlines()
    assert first == f"this training step cannot be distributed: it has {len(reasons)} problems:"
    places = [line for line in lines if line.startswith("The operation is ")]
    lines = lines[: len(lines) - len(places)]
    assert all("test_refused.py" in place for place in places), texts[0]
    assert len(lines) == len(reasons) and len(set(lines)) == len(lines)
    for line, reason in zip(lines, reasons, strict=True):
        assert line.startswith("  - ") and reason in line, texts[0]
    assert texts[0] == texts[1] or "0x" in texts[0], "a text with an address differs from trace to trace"


class WritesWeights(OwnStep):
    """Writes a trainable variable without an optimizer, from the batch."""

    def train_step(self, data):
        logs = super().train_step(data)
        self.first.kernel.assign(self.first.kernel + tf.reduce_mean(data[0]))
        return logs


class TracksInAFunction(OwnStep):
    """Updates a metric inside a function of its own, which outlives the trace of the step."""

    @tf.function
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        self.tracker.update_state(loss)
        return tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        self.optimizer.apply(self.gradients(*data), self.trainable_variables)
        return {"squares": self.tracker.result()}


class TrainsByHand(OwnLoss, OwnStep):
    """Updates its weights without an optimizer."""

    def descend(self, gradients):
        for gradient, variable in zip(gradients, self.trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)


def _model(kind: Callable[[], keras.Model]) -> keras.Model:
    model = ready(seeded(kind), keras.optimizers.SGD(0.1, name="sgd"), jit_compile=False)
    model(dense_data().x)  # builds it
    return model


@pytest.mark.parametrize(("kind", "reason"), [
    (WritesWeights, "is written outside an optimizer, with a value that needs"),
    (TrainsByHand, "outside an optimizer of the model"),
    (TracksInAFunction, "a metric is updated, or a loss computed, .* inside a tf.function"),
])  # fmt: skip
def test_after_a_refusal_the_model_is_as_before_and_plain_keras_trains_it(kind: type[keras.Model], reason: str):
    data, model, expected = even_data(), _model(kind), _model(kind)
    with distributed(model) as front, pytest.raises(CaptureError, match=reason):
        front.fit(data.x, data.y, epochs=1, **QUIET)
    kinds = [one.fit(data.x, data.y, epochs=1, **QUIET).history for one in (expected, model)]
    assert kinds[0] == kinds[1]
    assert_same(named(expected.weights), named(model.weights), tolerance=0.0)


class DifferentiatesPython(keras.layers.Layer):
    """Squares its input in Python, and asks TensorFlow for the gradient."""

    def __init__(self, where: str):
        super().__init__(name="python")
        self.where = where

    def call(self, x):
        def squared(x):
            return tf.ensure_shape(tf.py_function(lambda rows: rows**2, [x], x.dtype), x.shape)

        if self.where == "in a function":
            squared = tf.function(squared)
        if self.where == "in a branch":
            return tf.cond(tf.reduce_sum(x**2) < 1e9, lambda: squared(x), lambda: x)
        return squared(x)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.quick("in the step")
@pytest.mark.parametrize("where", ["in the step", "in a function", "in a branch"])
def test_gradients_of_python_are_refused_on_several_replicas(where: str):
    """TensorFlow would take one replica's forward pass for another's, or find none, as it happens."""
    dense = keras.layers.Dense
    plain, model = (
        seeded(lambda: keras.Sequential([keras.Input((5,)), dense(3), DifferentiatesPython(where), dense(1)]))
        for _ in range(2)
    )
    for each in (plain, model):
        each.compile("sgd", "mse", jit_compile=False)
    data, before = dense_data(), model.get_weights()
    with distributed(model, replicas=2) as front:
        with pytest.raises(CaptureError, match=r"gradient of a tf\.py_function.*tf\.custom_gradient, or train with"):
            front.fit(data.x, data.y, **QUIET)
        assert all(map(np.array_equal, before, model.get_weights()))
    plain.fit(data.x, data.y, **QUIET)
    with distributed(model, replicas=1) as front:
        front.fit(data.x, data.y, **QUIET)
    assert all(map(np.array_equal, plain.get_weights(), model.get_weights()))


def test_python_that_nothing_is_derived_from_trains_on_several_replicas():
    """What Python computes is looked at, not differentiated, in a scope with a misleading name."""

    def looks(x):
        with tf.name_scope("image_gradients"):
            squared = tf.py_function(lambda rows: rows**2, [x], x.dtype)
            return x + tf.stop_gradient(tf.ensure_shape(squared, x.shape))

    def build() -> keras.Model:
        dense = keras.layers.Dense
        return keras.Sequential([keras.Input((5,)), dense(3), Does(looks), dense(1)])

    assert_equal_training(ReferenceModel("looks", build, dense_data, DENSE.settings), optimizer="sgd")


def _spectral() -> keras.Model:
    """Every call divides the wrapped layer's kernel by its norm, in place."""
    wrapped = keras.layers.Dense(4, name="wrapped", trainable=False)
    layers = [keras.layers.SpectralNormalization(wrapped, name="spectral"), keras.layers.Dense(1, name="out")]
    return keras.Sequential([keras.Input((5,), name="x"), *layers], name="spectral_model")


def test_a_frozen_layer_that_writes_its_kernel_trains_like_one_device():
    assert_equal_training(ReferenceModel("spectral", _spectral, dense_data, lambda: {"loss": "mse"}), replicas=3)
