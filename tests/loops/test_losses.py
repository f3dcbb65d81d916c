"""Losses of several terms, and of sums and means over the examples: each term counts in its own way."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support.loop_steps import TrainedBy
from tests.support.loops import (
    BATCHES,
    Net,
    assert_equal_loops,
    assert_exact_plans,
    autodist,
    batches,
    descend,
    examples,
    values,
)


def summed(net: Net, x: Any, y: Any) -> Any:
    return tf.reduce_sum(net.losses(x, y))


def penalty(net: Net) -> Any:
    return tf.nn.l2_loss(net.kernel)


def size(x: Any) -> Any:
    return tf.cast(tf.shape(x)[0], x.dtype)


def half(number: Any) -> Any:
    return tf.cast(number, tf.float32)


LOSSES: dict[str, Callable[[Net, Any, Any, Any], Any]] = {
    "times a number": lambda net, x, y, beta: (summed(net, x, y) + penalty(net)) * 0.125,
    "a number times": lambda net, x, y, beta: 0.125 * (penalty(net) + summed(net, x, y)),
    "by a number": lambda net, x, y, beta: (summed(net, x, y) + penalty(net)) / 13.0,
    "subtracted": lambda net, x, y, beta: -(penalty(net) - summed(net, x, y)) / 13.0,
    "copied": lambda net, x, y, beta: tf.identity(tf.identity(summed(net, x, y)) + penalty(net)) / 13.0,
    "by the batch size": lambda net, x, y, beta: (summed(net, x, y) + penalty(net)) / size(x),
    "a mean by the batch size": lambda net, x, y, beta: (net.loss(x, y) + penalty(net)) / size(x),
    "a penalty by the batch size": lambda net, x, y, beta: net.loss(x, y) + penalty(net) / size(x),
    "by a variable": lambda net, x, y, beta: beta * (summed(net, x, y) + penalty(net)),
    "by several, in turn": lambda net, x, y, beta: (
        beta * (0.5 * (summed(net, x, y) - penalty(net)) + net.loss(x, y)) / 7.0 + penalty(net)
    ),
}


def _trained(front: Any) -> Any:
    """A network for each loss, and one function that trains them all."""
    beta = tf.Variable(0.25, dtype=tf.float64)
    nets = {name: Net() for name in LOSSES}

    @front.function
    def step(x, y):
        seen = {}
        for name, net in nets.items():
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = LOSSES[name](net, x, y, beta)
            gradients, of_examples = tape.gradient(loss, [net.variables, x])
            net.descend(gradients, 0.05)
            seen[name] = loss, tf.reduce_mean(net(x + 5.0 * of_examples) ** 2)
        return seen

    found = [step(x, y) for x, y in batches(*examples())]
    assert_exact_plans(step)
    return {"seen": found, "weights": {name: values(net.variables) for name, net in nets.items()}}


def test_a_sum_of_two_kinds_may_be_scaled():
    assert_equal_loops(_trained, "PS")


def _in_half_precision(net: Net) -> Any:
    """A loss in float32, scaled in float64."""
    def loss(x, y):
        return tf.cast(half(summed(net, x, y)) + half(penalty(net)), tf.float64) / 16.0

    return lambda x, y: net.train(lambda: loss(x, y), 0.05), []


def test_a_sum_of_two_kinds_may_be_cast():
    assert_equal_loops(TrainedBy(_in_half_precision), tolerance=1e-6)


def _factor_is_trained(net: Net) -> Any:
    """Gradients with respect to a factor, and to sums: of these the terms are no terms of the loss."""
    factor = tf.Variable(0.5, dtype=tf.float64)

    def step(x, y):
        with tf.GradientTape() as tape:
            total = net.loss(x, y) + penalty(net)
            loss = factor * penalty(net) + total
        of_total, of_factor, found = tape.gradient(loss, [total, factor, net.variables])
        net.descend(found, 0.05)
        factor.assign_sub(0.05 * of_factor)
        return loss, of_total

    return step, [factor]


def test_a_factor_and_a_sum_may_be_sources():
    assert_equal_loops(TrainedBy(_factor_is_trained))


def test_a_factor_of_the_batch_is_not_exact_and_the_plan_says_so():
    net = Net()
    with autodist() as front:

        @front.function
        def step(x, y):
            net.train(lambda: (summed(net, x, y) + penalty(net)) / tf.reduce_sum(x**2))

        assert "not exact: a loss made by" in step.plan(*examples(13))


def _of_sequences(net: Net) -> Any:
    labels = tf.constant([[1, 2, 1]])

    def loss(x):
        # Each example is a sequence of seven frames. TensorFlow computes this loss in float32 only.
        frames = tf.reshape(tf.tanh(x @ net.kernel + net.bias)[:, :, None] * net.out[None], [-1, 7, 3])
        count = tf.shape(x)[0]
        return tf.reduce_mean(tf.nn.ctc_loss(
            tf.tile(labels, [count, 1]), tf.cast(frames, tf.float32), tf.fill([count], 3), tf.fill([count], 7),
            logits_time_major=False, blank_index=0,
        ))

    return lambda x, y: net.train(lambda: loss(x)), []


def test_a_loss_whose_loops_have_no_traced_graph_equals_one_devices():
    assert_equal_loops(TrainedBy(_of_sequences), "PS", tolerance=float(np.finfo("float32").eps) * 8)


COUNT = sum(BATCHES)
WEIGHTS = np.abs(np.random.default_rng(2).normal(size=COUNT))
MASK = (np.arange(COUNT) % 5 == 0).astype(float)
"""At most three examples of a batch, and none of some replicas'."""


def _policy(net: Net, x: Any, y: Any, weights: Any, mask: Any) -> Any:
    """Advantages that are normalized over the batch. No gradient goes through the network's part of them."""
    advantages = weights - tf.stop_gradient(net(x)[:, 0])
    advantages = (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-8)
    return tf.reduce_mean(net.losses(x, y) * advantages)


def _of_sure(net: Net, x: Any, y: Any, weights: Any, mask: Any) -> Any:
    """A mean over the examples of which the network is sure."""
    sure = tf.cast(tf.reduce_max(net(x), 1) > 0.5, x.dtype)
    return tf.reduce_sum(sure * net.losses(x, tf.argmax(net(x), 1))) / tf.maximum(tf.reduce_sum(sure), 1.0)


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


OF_TOTALS = {
    "mask": lambda net, x, y, weights, mask: tf.reduce_sum(net.losses(x, y) * mask) / tf.maximum(
        tf.reduce_sum(tf.reduce_sum(mask[:, tf.newaxis], 0)), 1.0),
    "weights": lambda net, x, y, weights, mask: tf.reduce_mean(net.losses(x, y) * weights) / tf.reduce_mean(weights),
    "advantages": _policy, "sure": _of_sure, "size": _of_size, "mask of keras": _of_keras,
    "scaled back": _scaled_back,
    "a choice by the batch": lambda net, x, y, weights, mask: tf.cond(
        tf.reduce_mean(weights) > 0.8, lambda: net.loss(x, y), lambda: tf.reduce_mean(net.losses(x, y) * mask)),
}  # fmt: skip


def _train_totals(front: Any) -> Any:
    """A network for each loss, all in one function."""
    nets = {name: Net() for name in OF_TOTALS}

    @front.function
    def step(x, y, weights, mask):
        found = {}
        for name, loss_of in OF_TOTALS.items():
            with tf.GradientTape() as tape:
                found[name] = loss_of(nets[name], x, y, weights, mask)
            nets[name].descend(tape.gradient(found[name], nets[name].variables))
        return found

    seen = [step(*each) for each in batches(*examples(), WEIGHTS, MASK)]
    return {"seen": seen, "weights": {name: values(net.variables) for name, net in nets.items()}}


def test_losses_of_totals_equal_one_devices(caplog):
    assert_equal_loops(_train_totals, "PartitionedPS")
    assert not [each for each in caplog.records if "not exact" in each.getMessage()]


def _clipped_on_their_way(front: Any) -> Any:
    """Means whose gradients are clipped for each example: by a custom gradient of the step, and of a nested function.
    """
    clipped = tf.custom_gradient(lambda x: (tf.identity(x), lambda upstream: tf.clip_by_norm(upstream, 0.02, axes=[1])))
    nets = [Net(), Net()]

    def step(net, of_logits, x, y):
        def loss():
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=of_logits(net(x))))

        return net.train(loss)

    marked = [front.function(partial(step, *each)) for each in zip(nets, (clipped, tf.function(clipped)), strict=True)]
    losses = [[each(*batch) for each in marked] for batch in batches(*examples())]
    return losses, [values(net.variables) for net in nets]


def test_means_whose_gradients_are_clipped_on_their_way_equal_one_devices():
    assert_equal_loops(_clipped_on_their_way, "PS")


def _with_slopes(front: Any) -> Any:
    """A jacobian computes with integers of its own, in the shape of a variable, and a penalty of it is no second use.
    """
    net, scale = Net(), tf.Variable(1.0, dtype=tf.float64, name="scale")

    @front.function
    def step(x, y):
        def loss():
            with tf.GradientTape() as tape:
                tape.watch(x)
                logits = scale * net(x)
            return net.loss(x, y) + tf.reduce_mean(tape.batch_jacobian(logits, x) ** 2)

        return descend(loss, [*net.variables, scale], 0.1)

    return [step(*batch) for batch in batches(*examples())], values([*net.variables, scale])


def test_a_penalty_of_the_jacobian_by_the_examples_equals_one_devices(caplog):
    assert_equal_loops(_with_slopes, "PS")
    assert "pairs the examples" not in caplog.text


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
