"""Losses, their terms and results that are no mean over the examples: the plan names the operation of each."""

import re

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

from autodist_core import whole_batch
from tests.front.notes.models import X, Y, dense, error, r2, root, size, unknown
from tests.front.notes.test_layers import TABLE
from tests.support.layers import Adds
from tests.support.models import ready, stacked
from tests.support.plans import as_name, headed, notes_of
from tests.support.steps import OwnLoss
from tests.support.training import distributed, seeded


def _several(y, p):
    return tf.cond(size(y) > 1, lambda: tf.reduce_mean(error(y, p)), lambda: tf.reduce_mean(tf.abs(y - p)))


def _weighted_mean(y, p):
    weights = ops.abs(y) + 1.0
    return ops.sum(weights * error(y, p)) / ops.sum(weights)


def _barlow(y, p):
    correlation = ops.matmul(ops.transpose(p), p) / tf.cast(size(p), p.dtype)
    return ops.sum(ops.square(correlation - ops.eye(1, dtype=p.dtype)))


def _of_columns(y, p):
    """A value for each of four columns, which Keras takes the mean of."""
    return ops.sqrt(ops.mean(ops.square(y - ops.tile(p, (1, 4))), axis=0))


def _places(y, p):
    return error(y, p)[:, 0] * tf.cast(tf.range(size(y)), p.dtype)


def _added(y, p):
    """What is no mean although each example is added at a place of its own."""
    zeros = tf.zeros((2, 1), p.dtype)
    return tf.reduce_mean(tf.square(tf.tensor_scatter_nd_add(zeros, tf.cast(y > 0, tf.int32), y - p)))


def _over(number):
    return lambda y, p: tf.reduce_sum(error(y, p)) / (tf.cast(size(p), p.dtype) + number)


NO_MEANS = {
    "root": (root, "loss '{}' .*, by Mean"),
    "weighted mean": (_weighted_mean, "loss '{}' .*, by Sum"),
    "masked mean": (lambda y, p: tf.reduce_mean(tf.boolean_mask(error(y, p), y > 0)), "loss '{}' .*, by Mean"),
    "barlow": (_barlow, "loss '{}' .*, by MatMul"),
    "over size": (lambda y, p: error(y, p) / tf.cast(size(p), p.dtype), "loss '{}' .*, by RealDiv"),
    "of columns": (_of_columns, "loss '{}' .*, by Mean"),
}  # fmt: skip
MORE_NO_MEANS = {
    "halves": (lambda y, p: tf.reduce_mean(tf.split(error(y, p), [size(p) // 2, size(p) - size(p) // 2])[0]),
               "in loss '{}', SplitV"),
    "repeated": (lambda y, p: tf.reduce_mean(error(tf.tile(y, [2, 1]), tf.repeat(p, 2, axis=0))), "in loss '{}', Sub"),
    "several": (_several, "in loss '{}', Greater"),
    "pairs": (lambda y, p: tf.reduce_sum(tf.square(tf.boolean_mask(p, y > 0)[:, None] - tf.boolean_mask(p, y <= 0))),
              "in loss '{}', Sub"),
    "small": (_over(1e-7), "loss '{}' makes a value of the whole batch that is no mean"),
    "cut": (lambda y, p: tf.reduce_mean(error(y, p)[:, 0] * tf.constant(TABLE)[: size(p), 0]),
            "in loss '{}', StridedSlice"),
    "chosen": (lambda y, p: tf.gather_nd(error(y, p), tf.where(y > 0)), "loss '{}' gives a value for some examples"),
    "masked": (lambda y, p: tf.boolean_mask(error(y, p), y > 0), "loss '{}' gives a value for some examples"),
    "first half": (lambda y, p: tf.reduce_mean(error(y, p)[: size(y) // 2]), "in loss '{}', StridedSlice"),
    "places": (_places, "in loss '{}', Range"),
    "added to places": (_added, "loss '{}' .* by TensorScatterAdd"),
    "segments": (lambda y, p: tf.reduce_mean(tf.math.unsorted_segment_mean(
        error(y, p), tf.cast(y[:, 0] > 0, tf.int32), 2)), "loss '{}' .* by UnsortedSegmentSum"),
    "listnet": (lambda y, p: -ops.sum(ops.softmax(y, axis=0) * ops.log_softmax(p, axis=0), axis=-1),
                r"in loss '{}', Softmax \(.*, and 1 more such$"),
    "ranks": (lambda y, p: error(y, p)[:, 0] * tf.cast(tf.searchsorted(y[:, 0], y[:, 0]), p.dtype),
              "in loss '{}', LowerBound"),
    "remainder": (lambda y, p: tf.reduce_mean(error(y, p)) * tf.cast(size(y) % 3, p.dtype), "loss '{}' .* by Mean"),
}  # fmt: skip


def _of_rounds(y, p):
    """A mean that is added up in a loop."""
    return tf.while_loop(
        lambda at, sum: at < 3, lambda at, sum: (at + 1, sum + tf.reduce_mean(error(y, p))),
        [0, tf.constant(0.0, p.dtype)],
    )[1]


def _views(y, p):
    first, second = tf.split(tf.concat([p, 2 * p], 0), [size(p), size(p)])
    return tf.reduce_mean(tf.square(first * second - y))


MEANS = {
    "mean": lambda y, p: ops.mean(error(y, p)),
    "sum that keeps its axes": lambda y, p: ops.sum(error(y, p), keepdims=True) / 5,
    "sum over size": lambda y, p: ops.sum(error(y, p)) / ops.cast(ops.shape(p)[0], p.dtype),
    "terms": lambda y, p: 0.5 * ops.mean(error(y, p)) + ops.mean(ops.abs(y - p)) + 1.0,
    "value of each over size": lambda y, p: ops.sum(error(y, p) / ops.cast(ops.shape(p)[0], p.dtype)),
    "mean of weighted": lambda y, p: tf.reduce_mean(tf.where(y > 0, error(y, p), 0.0 * error(y, p))),
}
MORE_MEANS = {
    "sum of chosen": lambda y, p: tf.reduce_sum(tf.boolean_mask(error(y, p), y > 0)) / tf.cast(size(y), p.dtype),
    "chosen twice": lambda y, p: tf.reduce_sum(
        tf.square(tf.boolean_mask(p, y > 0) - tf.boolean_mask(y, y > 0))) / tf.cast(size(p), p.dtype),
    "rounded": _over(1e-16),
    "views": _views,
    "of rounds": _of_rounds,
}  # fmt: skip


def _with_losses(losses):
    """A wrapper of a model with a head for each loss, and its targets."""
    named = {as_name(name): loss for name, loss in losses.items()}
    for name, loss in named.items():
        loss.__name__ = name
    model = ready(seeded(headed(named)), "sgd", named, jit_compile=False)
    return distributed(model), dict.fromkeys(named, Y)


def test_a_loss_that_is_no_mean_is_not_exact():
    cases = NO_MEANS | MORE_NO_MEANS
    wrapper, targets = _with_losses({name: loss for name, (loss, _) in cases.items()})
    with wrapper as front:
        notes = [line for line in front.plan(X, targets).splitlines() if "loss" in line]
    assert len(notes) == len(cases)
    for name, (_, said) in cases.items():
        assert any(re.match(rf"  note: not exact: {said.format(as_name(name))}", note) for note in notes), name


def test_verify_accepts_what_a_loss_that_is_no_mean_explains():
    wrapper, targets = _with_losses({name: loss for name, (loss, _) in NO_MEANS.items()})
    with wrapper as front:
        notes = [line for line in front.plan(X, targets).splitlines() if "loss" in line]
        table = front.verify(X, targets)
    assert len(notes) == len(NO_MEANS) and all(note.removeprefix("  note: ") in table for note in notes)
    for name in map(as_name, NO_MEANS):
        (row,) = [line for line in table.splitlines() if line.split()[:1] == [f"{name}/kernel"]]
        assert "0.0e+00" not in row


def test_one_number_that_is_a_mean_or_a_sum_has_no_note():
    wrapper, targets = _with_losses(MEANS | MORE_MEANS)
    with wrapper as front:
        assert "loss" not in front.plan(X, targets)
    wrapper, targets = _with_losses(MEANS)
    with wrapper as front:
        assert "note" not in front.verify(X, targets)


def test_one_number_that_cannot_be_decided_has_the_remedy_and_a_metric_explains_no_other_weights():
    model = ready(seeded(dense(4)), "sgd", unknown, metrics=[r2], jit_compile=False)
    said = r"maybe not exact: it is not known whether PyFuncS.*; how loss 'unknown' makes one number .* return a value"
    differs = rf"differs from one device in out/kernel.* The plan says: {said}"
    with distributed(model) as front, pytest.raises(ValueError, match=differs):
        front.verify(X, Y)


# Terms of the loss that are no means

NO_MEAN = "makes a value of the whole batch that is no mean over its examples"


def _entropy(x):
    shares = ops.softmax(ops.mean(x, axis=0))
    return ops.sum(shares * ops.log(shares))


NO_MEAN_TERMS = {
    "Sqrt": lambda x: ops.sqrt(ops.mean(ops.square(x))), "Sum": _entropy,
    "Maximum": lambda x: ops.maximum(ops.mean(x), 2),
}  # fmt: skip
MEAN_TERMS = (
    lambda x: ops.mean(x**2), lambda x: ops.mean(x**2) * ops.ones(3), lambda x: ops.sum(x**2, axis=1),
    lambda x: ops.mean(tf.square(whole_batch(x))),
)


def test_an_added_term_that_is_no_mean_is_not_exact(caplog):
    model = seeded(lambda: stacked(
        keras.Input((5,)), layers.Dense(4, name="first"), Adds(*MEAN_TERMS, *NO_MEAN_TERMS.values()),
        Adds(lambda x: ops.sum(whole_batch(x), axis=-1)), layers.Dense(1, name="last"), jit_compile=False,
    ))  # fmt: skip
    with distributed(model) as front:
        notes = [line.strip() for line in front.plan(X, Y).splitlines() if "not exact" in line or "counts as" in line]
        table = front.verify(X, Y)
    for operation in NO_MEAN_TERMS:
        start = f"note: not exact: an add_loss term {NO_MEAN}, by {operation} ("
        (note,) = [line for line in notes if line.startswith(start)]
        assert note.removeprefix("note: ") in table and note.removeprefix("note: ") in caplog.text
    alike = "not exact: an add_loss term is the same on every replica, and is added up over the replicas: add its sum"
    (note,) = [line for line in notes if alike in line]
    assert note.removeprefix("note: ") in table and len(notes) == len(NO_MEAN_TERMS) + 1


class Computes(keras.Sequential):
    """Makes the loss of the compiled one."""

    of = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return type(self).of(super().compute_loss(x, y, y_pred, sample_weight), y_pred)


@pytest.mark.parametrize(("operation", "function"), [
    ("Sqrt", lambda loss, p: ops.sqrt(loss)), ("Maximum", lambda loss, p: ops.maximum(loss, 0.5)),
    ("", lambda loss, p: 2 * loss + ops.mean(ops.abs(p))),
])  # fmt: skip
def test_a_compute_loss_that_makes_no_mean_is_not_exact(operation: str, function, caplog):
    own = type("Own", (Computes,), {"of": staticmethod(function)})
    model = ready(seeded(lambda: own([keras.Input((5,)), layers.Dense(1)])), "sgd", "mse", jit_compile=False)
    with distributed(model) as front:
        notes = [line.strip() for line in front.plan(X, Y).splitlines() if "not exact" in line or "counts as" in line]
        front.fit(X, Y, verbose=0)
        front.evaluate(X, Y, verbose=0)
        assert ("not exact" in front.verify(X, Y)) == bool(operation)
    logged = [message for message in caplog.messages if "not exact" in message]
    assert len(notes) == len(logged) == bool(operation)
    for text in (*notes, *logged):
        assert f"not exact: the step's loss {NO_MEAN}, by {operation} ({operation}), and a replica has only" in text


class Returns(OwnLoss, keras.Sequential):
    """A step that returns numbers beside the loss."""

    def returned(self, x, loss):
        again = tf.gradients(loss, [variable.value for variable in self.trainable_variables])
        return {"loss": loss, "count": tf.cast(size(x), x.dtype), "norm": tf.linalg.global_norm(again)}


def test_norms_that_a_step_returns_are_named():
    (note,) = notes_of(lambda: Returns([keras.Input((5,)), layers.Dense(1)]), X, Y)
    assert re.match(r"whether the gradient that \w+ \(.*\) in the training step uses is one device's", note)
