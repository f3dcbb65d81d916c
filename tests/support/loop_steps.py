"""Training steps of one's own for a `Net`: other losses, gradients that are changed, control flow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tests.support.loops import Net, batches, examples, values


@dataclass(frozen=True)
class TrainedBy:
    """The loop that calls a step for each batch; `make_step` gets the network, and gives the step and its variables."""

    make_step: Callable[[Net], tuple[Callable, list]]

    def __call__(self, front: Any) -> Any:
        net = Net()
        step, variables = self.make_step(net)
        marked = front.function(step)
        seen = [marked(x, y) for x, y in batches(*examples())]
        return {"seen": seen, "weights": values(net.variables, variables)}


def gradients(net: Net, loss: Callable[[], Any]) -> tuple[Any, list[Any]]:
    with tf.GradientTape() as tape:
        value = loss()
    return value, tape.gradient(value, net.variables)


def of_losses(y, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


# Losses


def with_l2(net, x, y):
    return net.loss(x, y) + 0.01 * tf.add_n([tf.nn.l2_loss(each) for each in net.variables])


def sum_by_global_size(net, x, y):
    return tf.reduce_sum(net.losses(x, y)) / 13.0


def sum_with_l2(net, x, y):
    return tf.reduce_sum(net.losses(x, y)) + tf.nn.l2_loss(net.kernel)


def a_loss_for_each_example(net, x, y):
    return net.losses(x, y)


WEIGHTS = tf.constant([1.0, 2.0, 0.5], tf.float64)


def weighted_by_class(net, x, y):
    return tf.reduce_mean(net.losses(x, y) * tf.gather(WEIGHTS, y))


def cond_in_the_forward_pass(net, x, y):
    logits = net(x)
    if tf.reduce_sum(net.bias) > 0.0:
        logits = logits * 2.0
    return of_losses(y, logits)


def while_in_the_forward_pass(net, x, y):
    state, count = x @ net.kernel, tf.constant(0)
    while count < 3:
        state = tf.tanh(state + net.bias)
        count += 1
    return of_losses(y, state @ net.out)


def nested_forward_pass(net, x, y):
    return tf.reduce_mean(tf.function(net.losses)(x, y))


LOSSES = {
    with_l2: 0.1, sum_by_global_size: 0.1, sum_with_l2: 0.01, a_loss_for_each_example: 0.01, weighted_by_class: 0.1,
    cond_in_the_forward_pass: 0.1, while_in_the_forward_pass: 0.1, nested_forward_pass: 0.1,
}  # fmt: skip
"""Each with the rate of its step."""


# Steps that have no variables of their own


def clipped_by_norm(net, x, y):
    loss, found = gradients(net, lambda: net.loss(x, y))
    found, norm = tf.clip_by_global_norm(found, 0.3)
    net.descend(found)
    return loss, norm


def clipped_by_value(net, x, y):
    loss, found = gradients(net, lambda: net.loss(x, y))
    net.descend([tf.clip_by_value(each, -0.01, 0.01) for each in found])
    return loss


def scaled_gradients(net, x, y):
    loss, found = gradients(net, lambda: 1024.0 * net.loss(x, y))
    net.descend([each / 1024.0 for each in found])
    return loss / 1024.0


def decayed_weights(net, x, y):
    loss, found = gradients(net, lambda: net.loss(x, y))
    for variable, gradient in zip(net.variables, found, strict=True):
        variable.assign(variable * 0.99 - 0.1 * gradient)
    return loss


def persistent_tape(net, x, y):
    with tf.GradientTape(persistent=True) as tape:
        loss = net.loss(x, y)
        kernel = loss * 2.0
    net.kernel.assign_sub(0.1 * tape.gradient(kernel, net.kernel))
    net.out.assign_sub(0.1 * tape.gradient(loss, net.out))
    return loss


def two_losses(net, x, y):
    with tf.GradientTape() as tape:
        losses = net.losses(x, y)
        first, second = tf.reduce_mean(losses), 0.1 * tf.reduce_mean(losses**2)
    net.descend(tape.gradient([first, second], net.variables))
    return first, second


def some_variables_only(net, x, y):
    with tf.GradientTape() as tape:
        loss = net.loss(x, y)
    kernel, out = tape.gradient(loss, [net.kernel, net.out])
    net.out.assign_sub(0.1 * out)
    return loss, tf.norm(kernel)


def weighted_sum_with_l2(net, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(net.losses(x, y)) + 0.1 * tf.nn.l2_loss(net.kernel)
        loss += tf.reduce_mean(net(x) ** 2)
    net.descend(tape.gradient(loss, net.variables, output_gradients=tf.constant(0.5, tf.float64)), 0.01)
    return ()


def against_the_examples(net, x, y):
    """Train on examples that were moved along the gradient of a mean loss."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = net.loss(x, y)
    moved = x + 5.0 * tape.gradient(loss, x)
    return loss, net.train(lambda: net.loss(moved, y))


def against_the_signs_of_the_examples(net, x, y):
    """The examples are moved within the tape: the gradient of a sign is zero."""
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            first = net.loss(x, y)
        loss = net.loss(x + 0.1 * tf.sign(inner.gradient(first, x)), y)
    net.descend(tape.gradient(loss, net.variables))
    return first, loss


def variables_and_examples_at_once(net, x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = net.loss(x, y)
    of_examples, found = tape.gradient(loss, [x, net.variables])
    net.descend(found)
    return loss, tf.reduce_mean(net(x + 5.0 * of_examples) ** 2)


def loss_and_norm_of_gradients(net, x, y):
    loss, found = gradients(net, lambda: net.loss(x, y))
    net.descend(found)
    return loss + 0.1 * tf.linalg.global_norm(found)


def gradients_as_results(net, x, y):
    return gradients(net, lambda: net.loss(x, y))


def gradients_of_two_losses(net, x, y):
    loss, of_loss = gradients(net, lambda: net.loss(x, y))
    size, of_size = gradients(net, lambda: tf.reduce_sum(net(x) ** 2))

    # Where the gradients point away from each other, the second one loses its part against the first.
    def joined(one, two):
        return one + 0.1 * (two - tf.minimum(tf.reduce_sum(one * two), 0.0) / tf.reduce_sum(one * one) * one)

    net.descend(map(joined, of_loss, of_size), 0.05)
    return loss, size


# Steps with variables of their own


def averaged_weights(net):
    averages = [tf.Variable(each) for each in net.variables]

    def step(x, y):
        loss = net.train(lambda: net.loss(x, y))
        for average, variable in zip(averages, net.variables, strict=True):
            average.assign(0.9 * average + 0.1 * variable)
        return loss

    return step, averages


def averaged_by_tensorflow(net):
    average = tf.train.ExponentialMovingAverage(0.9)
    average.apply(net.variables)

    def step(x, y):
        loss = net.train(lambda: net.loss(x, y))
        average.apply(net.variables)
        return loss

    return step, [average.average(each) for each in net.variables]


def own_schedule(net):
    count = tf.Variable(0, dtype=tf.int64)

    def step(x, y):
        loss = net.train(lambda: net.loss(x, y), 0.1 / (1.0 + tf.cast(count, tf.float64)))
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


def applied_three_times(net):
    # Adam's step size depends on a counter, which each call of apply raises.
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(net.variables)

    def step(x, y):
        losses = []
        for _ in range(3):
            loss, found = gradients(net, lambda: net.loss(x, y))
            optimizer.apply(found, net.variables)
            losses.append(loss)
        return losses

    return step, optimizer.variables


PLAIN = [
    clipped_by_norm, clipped_by_value, scaled_gradients, decayed_weights, persistent_tape, two_losses,
    some_variables_only, weighted_sum_with_l2, against_the_examples, against_the_signs_of_the_examples,
    variables_and_examples_at_once, loss_and_norm_of_gradients, gradients_as_results, gradients_of_two_losses,
]  # fmt: skip
WITH_VARIABLES = [
    averaged_weights, averaged_by_tensorflow, own_schedule, cond_on_a_variable, sharpness_aware,
    accumulated_by_the_optimizer, scaled_by_the_optimizer, applied_if_finite, applied_three_times,
]  # fmt: skip


def _by_loss(loss: Callable, rate: float) -> Callable:
    return lambda net: (lambda x, y: net.train(lambda: loss(net, x, y), rate), [])


def _plain(step: Callable) -> Callable:
    return lambda net: (lambda x, y: step(net, x, y), [])


STEPS = {
    **{loss.__name__: TrainedBy(_by_loss(loss, rate)) for loss, rate in LOSSES.items()},
    **{step.__name__: TrainedBy(_plain(step)) for step in PLAIN},
    **{step.__name__: TrainedBy(step) for step in WITH_VARIABLES},
}
"""The loops, each by the name of its step."""
