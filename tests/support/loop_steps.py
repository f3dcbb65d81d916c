"""Training steps of one's own for a `Net`: other losses, gradients that are changed, control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.support.loops import Net, batches, examples, values


def trained_by(make_step: Callable[[Net], Callable], *more: tf.Variable) -> Callable[[Any], Any]:
    """The loop that calls a step for each batch; `make_step` gets the network, and gives the step and its variables."""

    def loop(front: Any) -> Any:
        net = Net()
        made = make_step(net)
        step, variables = made if isinstance(made, tuple) else (made, [])
        marked = front.function(step)
        seen = [marked(x, y) for x, y in batches(*examples())]
        return {"seen": seen, "weights": values(net.variables, variables)}

    return loop


def gradients(net: Net, loss: Callable[[], Any]) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        value = loss()
    return value, tape.gradient(value, net.variables)


def clipped_by_norm(net):
    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        found, norm = tf.clip_by_global_norm(found, 0.3)
        net.descend(found)
        return loss, norm

    return step


def clipped_by_value(net):
    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend([tf.clip_by_value(each, -0.01, 0.01) for each in found])
        return loss

    return step


def with_l2(net):
    def step(x, y):
        loss, found = gradients(
            net, lambda: net.loss(x, y) + 0.01 * tf.add_n([tf.nn.l2_loss(each) for each in net.variables])
        )
        net.descend(found)
        return loss

    return step


def sum_by_global_size(net):
    def step(x, y):
        loss, found = gradients(net, lambda: tf.reduce_sum(net.losses(x, y)) / 13.0)
        net.descend(found)
        return loss

    return step


def sum_with_l2(net):
    def step(x, y):
        loss, found = gradients(net, lambda: tf.reduce_sum(net.losses(x, y)) + tf.nn.l2_loss(net.kernel))
        net.descend(found, 0.01)
        return loss

    return step


def a_loss_for_each_example(net):
    def step(x, y):
        losses, found = gradients(net, lambda: net.losses(x, y))
        net.descend(found, 0.01)
        return losses

    return step


def weighted_by_class(net):
    weights = tf.constant([1.0, 2.0, 0.5], tf.float64)

    def step(x, y):
        loss, found = gradients(net, lambda: tf.reduce_mean(net.losses(x, y) * tf.gather(weights, y)))
        net.descend(found)
        return loss

    return step


def scaled_gradients(net):
    def step(x, y):
        loss, found = gradients(net, lambda: 1024.0 * net.loss(x, y))
        net.descend([each / 1024.0 for each in found])
        return loss / 1024.0

    return step


def averaged_weights(net):
    averages = [tf.Variable(each) for each in net.variables]

    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend(found)
        for average, variable in zip(averages, net.variables, strict=True):
            average.assign(0.9 * average + 0.1 * variable)
        return loss

    return step, averages


def averaged_by_tensorflow(net):
    average = tf.train.ExponentialMovingAverage(0.9)
    average.apply(net.variables)

    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend(found)
        average.apply(net.variables)
        return loss

    return step, [average.average(each) for each in net.variables]


def decayed_weights(net):
    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        for variable, gradient in zip(net.variables, found, strict=True):
            variable.assign(variable * 0.99 - 0.1 * gradient)
        return loss

    return step


def own_schedule(net):
    count = tf.Variable(0, dtype=tf.int64)

    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend(found, 0.1 / (1.0 + tf.cast(count, tf.float64)))
        count.assign_add(1)
        return loss, count

    return step, [count]


def cond_on_a_variable(net):
    count = tf.Variable(0)

    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        if count % 2 == 0:
            net.descend(found, 0.1)
        else:
            net.descend(found, 0.02)
        count.assign_add(1)
        return loss

    return step, [count]


def cond_in_the_forward_pass(net):
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = net(x)
            if tf.reduce_sum(net.bias) > 0.0:
                logits = logits * 2.0
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        net.descend(tape.gradient(loss, net.variables))
        return loss

    return step


def while_in_the_forward_pass(net):
    def step(x, y):
        with tf.GradientTape() as tape:
            state, count = x @ net.kernel, tf.constant(0)
            while count < 3:
                state = tf.tanh(state + net.bias)
                count += 1
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=state @ net.out)
            )
        net.descend(tape.gradient(loss, net.variables))
        return loss

    return step


def nested_forward_pass(net):
    forward = tf.function(net.losses)

    def step(x, y):
        loss, found = gradients(net, lambda: tf.reduce_mean(forward(x, y)))
        net.descend(found)
        return loss

    return step


def persistent_tape(net):
    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            loss = net.loss(x, y)
            kernel = loss * 2.0
        net.kernel.assign_sub(0.1 * tape.gradient(kernel, net.kernel))
        net.out.assign_sub(0.1 * tape.gradient(loss, net.out))
        return loss

    return step


def two_losses(net):
    def step(x, y):
        with tf.GradientTape() as tape:
            losses = net.losses(x, y)
            first, second = tf.reduce_mean(losses), 0.1 * tf.reduce_mean(losses**2)
        net.descend(tape.gradient([first, second], net.variables))
        return first, second

    return step


def some_variables_only(net):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = net.loss(x, y)
        kernel, out = tape.gradient(loss, [net.kernel, net.out])
        net.out.assign_sub(0.1 * out)
        return loss, tf.norm(kernel)

    return step


def weighted_sum_with_l2(net):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net.losses(x, y)) + 0.1 * tf.nn.l2_loss(net.kernel)
            loss += tf.reduce_mean(net(x) ** 2)
        net.descend(tape.gradient(loss, net.variables, output_gradients=tf.constant(0.5, tf.float64)), 0.01)
        return ()

    return step


def sharpness_aware(net):
    """Go uphill, compute the gradients there, go back, and go downhill by them."""
    slots = [tf.Variable(tf.zeros_like(each)) for each in net.variables]

    def step(x, y):
        first, found = gradients(net, lambda: net.loss(x, y))
        norm = tf.linalg.global_norm(found)
        uphill = [0.5 * each / norm for each in found]
        for variable, way in zip(net.variables, uphill, strict=True):
            variable.assign_add(way)
        second, found = gradients(net, lambda: net.loss(x, y))
        for variable, way in zip(net.variables, uphill, strict=True):
            variable.assign_sub(way)
        for slot, gradient in zip(slots, found, strict=True):
            slot.assign(0.9 * slot + gradient)
        net.descend(slots)
        return first, second

    return step, slots


def against_the_examples(net):
    """Train on examples that were moved along the gradient of a mean loss."""

    def step(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = net.loss(x, y)
        moved = x + 5.0 * tape.gradient(loss, x)
        second, found = gradients(net, lambda: net.loss(moved, y))
        net.descend(found)
        return loss, second

    return step


def against_the_signs_of_the_examples(net):
    """The examples are moved within the tape: the gradient of a sign is zero."""

    def step(x, y):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                first = net.loss(x, y)
            loss = net.loss(x + 0.1 * tf.sign(inner.gradient(first, x)), y)
        net.descend(tape.gradient(loss, net.variables))
        return first, loss

    return step


def _applied_by(optimizer, net, only_finite=False):
    optimizer.build(net.variables)

    def step(x, y):
        loss, found = gradients(net, lambda: optimizer.scale_loss(net.loss(x, y)))
        if only_finite:
            if tf.math.is_finite(tf.linalg.global_norm(found)):
                optimizer.apply_gradients(zip(found, net.variables, strict=True))
        else:
            optimizer.apply_gradients(zip(found, net.variables, strict=True))
        return loss

    return step, optimizer.variables


def accumulated_by_the_optimizer(net):
    return _applied_by(keras.optimizers.Adam(0.05, gradient_accumulation_steps=2, clipnorm=0.3), net)


def scaled_by_the_optimizer(net):
    return _applied_by(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.05), 4.0, 2), net)


def applied_if_finite(net):
    return _applied_by(keras.optimizers.AdamW(0.05), net, only_finite=True)


def variables_and_examples_at_once(net):
    def step(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = net.loss(x, y)
        of_examples, found = tape.gradient(loss, [x, net.variables])
        net.descend(found)
        return loss, tf.reduce_mean(net(x + 5.0 * of_examples) ** 2)

    return step


def loss_and_norm_of_gradients(net):
    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend(found)
        return loss + 0.1 * tf.linalg.global_norm(found)

    return step


def gradients_as_results(net):
    def step(x, y):
        return gradients(net, lambda: net.loss(x, y))

    return step


def applied_three_times(net):
    # Adam's step size depends on a counter, which each call of apply raises.
    optimizer = keras.optimizers.Adam(0.05)

    def step(x, y):
        losses = []
        for _ in range(3):
            loss, found = gradients(net, lambda: net.loss(x, y))
            optimizer.apply(found, net.variables)
            losses.append(loss)
        return losses

    optimizer.build(net.variables)
    return step, optimizer.variables


def gradients_of_two_losses(net):
    def step(x, y):
        loss, of_loss = gradients(net, lambda: net.loss(x, y))
        size, of_size = gradients(net, lambda: tf.reduce_sum(net(x) ** 2))
        # Where the gradients point away from each other, the second one loses its part against the first.
        def joined(one, two):
            return one + 0.1 * (two - tf.minimum(tf.reduce_sum(one * two), 0.0) / tf.reduce_sum(one * one) * one)

        net.descend(map(joined, of_loss, of_size), 0.05)
        return loss, size

    return step


STEPS = [
    clipped_by_norm, clipped_by_value, with_l2, sum_by_global_size, sum_with_l2, a_loss_for_each_example,
    weighted_by_class, scaled_gradients, averaged_weights, averaged_by_tensorflow, decayed_weights, own_schedule,
    cond_on_a_variable, cond_in_the_forward_pass, while_in_the_forward_pass, nested_forward_pass, persistent_tape,
    two_losses, some_variables_only, sharpness_aware, against_the_examples, variables_and_examples_at_once,
    weighted_sum_with_l2, loss_and_norm_of_gradients, gradients_as_results, against_the_signs_of_the_examples,
    accumulated_by_the_optimizer, scaled_by_the_optimizer, applied_if_finite,
    applied_three_times, gradients_of_two_losses,
]  # fmt: skip
