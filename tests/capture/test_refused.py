"""Steps that cannot be captured are refused with all reasons, in one CaptureError, and change nothing."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError, NotYetError
from tests.capture.steps import DATA, QUIET, assert_refused, compiled, gradients_of, stepping
from tests.support.compare import assert_same, named
from tests.support.steps import OwnStep
from tests.support.training import distributed


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
            front.fit(DATA.x, DATA.y, **QUIET)
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
        front_of(model).fit(DATA.x, DATA.y, **QUIET)
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
