"""Losses and layers that take the whole batch equal one device, on uneven batches too."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from autodist_core import whole_batch
from autodist_keras.losses import WholeBatch
from tests.support.layers import Does
from tests.support.models import ready, stacked
from tests.support.steps import OwnLoss
from tests.support.training import assert_equal_training, distributed, seeded

ROWS, FEATURES = 22, 6


def examples():
    random = np.random.default_rng(3)
    return random.normal(size=(ROWS, FEATURES)), random.normal(size=(ROWS, 4)), random.random(ROWS) + 0.2


def in_batch_softmax(labels, embeddings):
    """Two towers' embeddings side by side: each query's own candidate against all candidates of the batch."""
    query, candidate = ops.split(embeddings, 2, axis=-1)
    scores = ops.matmul(query, ops.transpose(candidate))
    return keras.losses.sparse_categorical_crossentropy(ops.arange(ops.shape(scores)[0]), scores, from_logits=True)


class Contrastive(keras.losses.Loss):
    def call(self, labels, embeddings):
        norms = keras.ops.normalize(embeddings, axis=-1)
        apart = tf.linalg.set_diag(tf.matmul(norms, norms, transpose_b=True), tf.zeros(tf.shape(norms)[0], norms.dtype))
        return ops.logsumexp(apart, axis=-1)


@keras.saving.register_keras_serializable("tests")
class Centred(keras.layers.Layer):
    def call(self, inputs):
        return inputs - tf.reduce_mean(whole_batch(inputs), axis=0)


def model(loss, layers=(), **compiled):
    return stacked(
        keras.Input((FEATURES,)), keras.layers.Dense(8, activation="tanh"), *(layer() for layer in layers),
        keras.layers.Dense(4, use_bias=False), optimizer="adam", loss=loss, **compiled,
    )


def of_whole_batch(labels, embeddings):
    return in_batch_softmax(*whole_batch((labels, embeddings)))


def spread(labels, embeddings):
    return ops.max(whole_batch(embeddings)) - ops.min(whole_batch(embeddings))


def fitted(weights=False):
    def program(front, _):
        x, y, mass = examples()
        history = front.fit(
            x, y, sample_weight=mass if weights else None, batch_size=9, epochs=2, shuffle=False, verbose=0
        ).history
        return {**history, "evaluated": front.evaluate(x[:9], y[:9], verbose=0, return_dict=True)}
    return program


def masked():
    """A loss of each time step; half of the steps are masked."""
    def unlike_the_mean(labels, values):
        return ops.sum(ops.square(values - ops.mean(values, axis=0)), axis=-1)

    return stacked(
        keras.Input((3, 2)), keras.layers.Masking(), keras.layers.Dense(4, activation="tanh"),
        keras.layers.Dense(2, use_bias=False), loss=WholeBatch(unlike_the_mean),
    )


def of_sequences(front, _):
    x = np.random.default_rng(1).normal(size=(ROWS, 3, 2))
    x[::3, 1:] = 0.0
    return front.fit(x, np.zeros((ROWS, 3, 1)), batch_size=9, epochs=2, shuffle=False, verbose=0).history


class Unreduced(keras.losses.Loss):
    """A loss with a `__call__` of its own, which returns several numbers."""

    def __init__(self, function):
        super().__init__(name="unreduced")
        self.function = function

    def __call__(self, labels, embeddings, sample_weight=None):
        return self.function(labels, embeddings)


def with_unreduced_losses():
    """Each loss has a value for each example of the whole batch, on every replica."""
    features = keras.Input((FEATURES,))
    squares = keras.losses.MeanSquaredError
    losses = {
        "none": WholeBatch(squares(reduction="none")), "of_none": WholeBatch(squares(reduction=None)),
        "own": Unreduced(lambda *pair: ops.mean(ops.square(ops.subtract(*whole_batch(pair))), axis=-1)),
    }
    heads = {name: keras.layers.Dense(4, name=name)(features) for name in losses}
    return ready(keras.Model(features, heads), "sgd", losses)


def means():
    """Three numbers, each a mean over the examples."""
    network = model(Unreduced(lambda labels, values: ops.mean(ops.square(labels - values)) * ops.ones(3)))
    return ready(network, "sgd", network.loss)


def fitted_heads(front, model):
    x, y, mass = examples()
    targets = dict.fromkeys(("none", "of_none", "own"), y)
    history = front.fit(x, targets, sample_weight=mass, batch_size=9, epochs=2, shuffle=False, verbose=0).history
    if front is not model:
        assert not front.inexact
    return {**history, "evaluated": front.evaluate(x[:9], {k: v[:9] for k, v in targets.items()}, verbose=0)}


def test_losses_that_are_not_reduced_count_once():
    assert_equal_training(with_unreduced_losses, strategy="AllReduce", replicas=3, program=fitted_heads)


def test_numbers_that_are_no_single_examples_count_once():
    assert_equal_training(means, strategy="PS", replicas=2, program=fitted())


class Detector(keras.Sequential):
    """Divides the loss of its examples by how many boxes there are in the whole batch, as object detectors do."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        boxes = ops.cast(y > 0.5, y.dtype)
        return ops.sum(boxes * ops.square(y - y_pred)) / ops.sum(whole_batch(boxes))


class OfWholeBatch(OwnLoss, keras.Sequential):
    """Computes a loss of the whole batch by hand, behind synchronized statistics."""

    def own_loss(self, x, y):
        return WholeBatch(in_batch_softmax)(y, self(x, training=True))


def own_step():
    normalized = keras.layers.BatchNormalization(synchronized=True)
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(8, use_bias=False), normalized]
    return ready(OfWholeBatch([*layers, keras.layers.Dense(4, use_bias=False)]), "adam", of_whole_batch)


CASES = {
    "softmax": lambda: model(WholeBatch(in_batch_softmax)),
    "function": lambda: model(of_whole_batch),
    "contrastive": lambda: model(WholeBatch(Contrastive()), metrics=[spread]),
    "dice": lambda: model(WholeBatch(keras.losses.Dice(axis=(1,)))),
    "centred": lambda: model("mse", [Centred, Centred]),
    "detector": lambda: ready(Detector([keras.Input((FEATURES,)), keras.layers.Dense(4)]), "adam", "mse"),
    "own_step": own_step,
}


@pytest.mark.quick("function-Parallax-2", "centred-AllReduce-3", "detector-PS-3", "own_step-AllReduce-3")
@pytest.mark.parametrize(("case", "strategy", "replicas"), [
    ("softmax", "PS", 2), ("softmax", "AllReduce", 3), ("function", "Parallax", 2), ("contrastive", "AllReduce", 4),
    ("dice", "PS", 3), ("centred", "AllReduce", 3), ("detector", "PS", 3), ("own_step", "AllReduce", 3),
])
def test_equals_one_device(case, strategy, replicas):
    assert_equal_training(CASES[case], strategy=strategy, replicas=replicas, program=fitted())


@pytest.mark.quick("contrastive")
@pytest.mark.parametrize("case", ["softmax", "contrastive"])
def test_weights_of_examples_count_as_on_one_device(case):
    assert_equal_training(CASES[case], strategy="AllReduce", replicas=3, program=fitted(weights=True))


def test_masks_count_as_on_one_device():
    assert_equal_training(masked, strategy="AllReduce", replicas=3, program=of_sequences)


def test_a_sum_of_the_whole_batch_is_said():
    class Summed(Contrastive):
        def call(self, labels, embeddings):
            return super().call(labels, whole_batch(embeddings))

    x, y, _ = examples()
    with distributed(seeded(lambda: model(Summed(reduction="sum"))), "AllReduce", replicas=2) as front:
        plan = str(front.plan(x[:9], y[:9]))
    assert "not exact: loss 'summed' is the same number on every replica, and is added up over the replicas" in plan


def test_weights_are_not_rows():
    def loss(labels, embeddings):
        return ops.mean(whole_batch(tf.constant([1.0, 2.0])))

    x, y, _ = examples()
    refused = "one row for each example of the batch. Received one of shape (2,), whose first axis is not the batch's"
    with (
        distributed(seeded(lambda: model(loss)), "AllReduce", replicas=2) as front,
        pytest.raises(ValueError, match=re.escape(refused)),
    ):
        front.fit(x, y, verbose=0)


def test_it_is_saved_with_the_model(tmp_path):
    network = seeded(lambda: model(WholeBatch(keras.losses.Dice(axis=(1,)), name="overlap")))
    network.optimizer.build(network.trainable_variables)
    network.save(tmp_path / "model.keras")
    loss = keras.saving.load_model(tmp_path / "model.keras").loss
    assert (type(loss), loss.name, type(loss.loss), loss.loss.axis) == (WholeBatch, "overlap", keras.losses.Dice, [1])


@pytest.mark.quick("dice", "own_step")
@pytest.mark.parametrize("case", CASES)
def test_the_plan_has_no_note(case):
    x, y, _ = examples()
    with distributed(seeded(CASES[case]), "AllReduce", replicas=2) as front:
        assert "not exact" not in str(front.plan(x[:9], y[:9]))
        front.verify(x[:9], y[:9])


def test_rows_of_the_whole_batch_by_numbers_that_come_with_it_are_one_devices():
    def build():
        x, numbers = keras.Input((FEATURES,)), keras.Input((2,), dtype="int32")
        hidden = keras.layers.Dense(8, activation="tanh", name="first")(x)
        apart = Does(lambda given: given[0] - tf.reduce_mean(tf.gather(whole_batch(given[0]), given[1]), axis=1))
        last = keras.layers.Dense(4, name="last")(apart([hidden, numbers]))
        return ready(keras.Model([x, numbers], last), "adam", "mse", jit_compile=False)

    def program(front, network):
        x, y, _ = examples()
        numbers = np.random.default_rng(4).integers(0, ROWS - 18, (ROWS, 2))
        return front.fit([x, numbers], y, batch_size=9, epochs=2, shuffle=False, verbose=0).history

    assert_equal_training(build, program, replicas=3)
