"""Sums and means over the examples, and their number, from which a function computes further: the whole batch's."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.loops import BATCHES, Net, assert_equal_loops, autodist, batches, descend, examples, values

COUNT = sum(BATCHES)
WEIGHTS = np.abs(np.random.default_rng(2).normal(size=COUNT))
MASK = (np.arange(COUNT) % 5 == 0).astype(float)
"""At most three examples of a batch, and none of some replicas'."""


def _policy(net: Net, x: Any, y: Any, weights: Any, mask: Any) -> Any:
    """Advantages that are normalized over the batch."""
    advantages = (weights - tf.reduce_mean(weights)) / (tf.math.reduce_std(weights) + 1e-8)
    return tf.reduce_mean(net.losses(x, y) * advantages)


def _of_size(net: Net, x: Any, y: Any, weights: Any, mask: Any) -> Any:
    """The number of examples, where it is no factor, and terms of two kinds, which share it."""
    size = tf.cast(tf.shape(x)[0], x.dtype)
    large = tf.where(weights > tf.sqrt(size) / 4, size, 1.0)
    return (tf.reduce_sum(net.losses(x, y) * large) + 0.1 * tf.nn.l2_loss(net.kernel)) / size


def _of_keras(net: Net, x: Any, y: Any, weights: Any, mask: Any) -> Any:
    """A loss whose mask Keras weights by the numbers of all and of masked entries."""
    logits = net(x)
    logits._keras_mask = mask > 0.0
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits)


def _scaled_back(net: Net, x: Any, y: Any, weights: Any, mask: Any) -> Any:
    """A mean whose gradient, and not its value, is scaled by a number of the whole batch."""
    number = tf.reduce_mean(weights)
    return tf.custom_gradient(lambda loss: (tf.identity(loss), lambda upstream: upstream * number))(net.loss(x, y))


LOSSES = {
    "mask": lambda net, x, y, weights, mask: tf.reduce_sum(net.losses(x, y) * mask) / tf.maximum(
        tf.reduce_sum(mask), 1.0),
    "weights": lambda net, x, y, weights, mask: tf.reduce_mean(net.losses(x, y) * weights) / tf.reduce_mean(weights),
    "advantages": _policy, "size": _of_size, "mask of keras": _of_keras,
    "scaled back": _scaled_back,
    "a choice by the batch": lambda net, x, y, weights, mask: tf.cond(
        tf.reduce_mean(weights) > 0.8, lambda: net.loss(x, y), lambda: tf.reduce_mean(net.losses(x, y) * mask)),
}  # fmt: skip


def _trained(front: Any) -> Any:
    """A network for each loss, all in one function."""
    nets = {name: Net() for name in LOSSES}

    @front.function
    def step(x, y, weights, mask):
        found = {}
        for name, loss_of in LOSSES.items():
            with tf.GradientTape() as tape:
                found[name] = loss_of(nets[name], x, y, weights, mask)
            nets[name].descend(tape.gradient(found[name], nets[name].variables))
        return found

    seen = [step(*each) for each in batches(*examples(), WEIGHTS, MASK)]
    return {"seen": seen, "weights": {name: values(net.variables) for name, net in nets.items()}}


def test_losses_of_totals_equal_one_devices(caplog):
    assert_equal_loops(_trained, "PartitionedPS")
    assert not [each for each in caplog.records if "not exact" in each.getMessage()]


def _evaluated(front: Any) -> Any:
    net = Net()

    @front.function
    def evaluate(x, y, weights):
        right = tf.cast(tf.argmax(net(x), 1) == y, x.dtype)
        found, wanted = tf.cast(x[:, 0] > 0, x.dtype), tf.cast(y > 0, x.dtype)
        size = tf.cast(tf.shape(x)[0], x.dtype)
        return {
            "perplexity": tf.exp(net.loss(x, y)), "root": tf.sqrt(tf.reduce_mean(x**2)),
            "f1": 2 * tf.reduce_sum(found * wanted) / (tf.reduce_sum(found) + tf.reduce_sum(wanted)),
            "spread": tf.math.reduce_std(x, 0), "norm": tf.norm(x), "weighted": tf.reduce_sum(
                right * weights) / tf.reduce_sum(weights),
            "both": tf.stack([tf.reduce_sum(x), tf.reduce_mean(x)]), "of both": tf.reduce_mean(x) + tf.reduce_sum(x),
            "half": tf.reduce_sum(tf.cast(right, tf.int32)) // 2, "centred": x - tf.reduce_mean(x, 0),
            "capped": tf.minimum(x, size / 8), "wide": tf.concat([x, tf.ones_like(x) * size], 1),
        }  # fmt: skip

    return [evaluate(*each) for each in batches(*examples(), WEIGHTS)]


def test_results_of_totals_equal_one_devices(caplog):
    assert_equal_loops(_evaluated, "PS")
    assert not [each for each in caplog.records if "not exact" in each.getMessage()]


def test_a_total_that_a_tape_differentiates_stays_the_replicas_own_and_is_named():
    weight = tf.Variable([1.0, 2.0], dtype=tf.float64)

    def loss_of(x: Any) -> Any:
        return descend(lambda: tf.reduce_sum(x * weight) / tf.reduce_sum((x * weight) ** 2), weight)

    with autodist() as front:
        plan = front.function(loss_of).plan(np.ones((4, 2)))
    assert "not exact: a loss made by Sum" in plan
