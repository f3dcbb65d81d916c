"""All reasons why a step is refused come in one error, and `plan(x, y)` gives the error that `fit` gives."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError, NotYetError
from tests.capture.steps import DATA, assert_refused, gradients_of, stepping
from tests.support.training import distributed


def _apply(model: keras.Model, data: Any, change: Callable[[list], list] = lambda gradients: gradients) -> None:
    model.optimizer.apply(change(gradients_of(model, data)), model.trainable_variables)


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


def _noisy(model, data) -> None:
    noisy = lambda g: g + keras.random.normal(g.shape, dtype=g.dtype, seed=model.noise)  # noqa: E731
    _apply(model, data, lambda gradients: [*map(noisy, gradients)])


WRITTEN = "is written outside an optimizer, with a value that needs the batch or random numbers"
REFUSED: dict[str, tuple[Callable, str, type[Exception], list[str]]] = {
    "writes": (_writes, "PartitionedPS", CaptureError, [
        f"trainable variable 'first/kernel' {WRITTEN}", f"trainable variable 'second/kernel' {WRITTEN}",
        "optimizer variable 'optimizer/sgd/learning_rate' is written outside optimizer.apply",
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
    "random numbers": (_noisy, "AllReduce", NotYetError, ["the update draws random numbers at"] * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_all_reasons_come_at_once_and_from_the_plan_too(name: str):
    step, strategy, kind, reasons = REFUSED[name]
    model = stepping(step, _prepare)()
    with distributed(model, strategy=strategy, share_memory=False) as front, pytest.raises(kind) as planned:
        front.plan(DATA.x, DATA.y)
    texts = [str(planned.value), assert_refused(model, " problems:", kind, strategy=strategy, share_memory=False)]
    first, *lines = texts[0].splitlines()
    assert first == f"this training step cannot be distributed: it has {len(reasons)} problems:"
    places = [line for line in lines if line.startswith("The operation is ")]
    lines = lines[: len(lines) - len(places)]
    assert all("test_refused_together.py" in place for place in places), texts[0]
    assert len(lines) == len(reasons) and len(set(lines)) == len(lines)
    for line, reason in zip(lines, reasons, strict=True):
        assert line.startswith("  - ") and reason in line, texts[0]
    assert texts[0] == texts[1] or "0x" in texts[0], "a text with an address differs from trace to trace"

