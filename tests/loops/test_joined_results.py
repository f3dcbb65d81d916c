"""Results that are made for the whole batch: with gradients, with variables just written, and with the batch size."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec, distribute
from autodist_core.errors import CaptureError
from tests.support.loops import assert_equal_loops, autodist, batches, examples, values


def _size(x: Any) -> Any:
    return tf.cast(tf.shape(x)[0], tf.float64)


def _of_what_was_written(front: Any) -> Any:
    total, mean = (tf.Variable(np.zeros(5)) for _ in range(2))
    weight = tf.Variable(np.ones((5, 1)))

    @front.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight) ** 2)
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.1 * gradient)
        total.assign_add(tf.reduce_sum(x, 0))
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return (
            x - total, tf.reduce_sum(x * mean), tf.reduce_max(x - mean), total / _size(x), x * tf.norm(gradient),
            tf.norm(gradient) / _size(x), x @ weight, tf.reduce_sum(x) - mean, tf.transpose(x - mean), tf.stack([x, x]),
        )

    return {"seen": [step(x) for (x,) in batches(examples()[0])], "kept": values([total, mean, weight])}


def test_a_result_that_needs_what_cannot_be_joined_is_refused():
    with autodist(replicas=2) as front:
        total = tf.Variable(np.zeros(5))

        @front.function
        def step(x):
            total.assign_add(tf.reduce_sum(x, 0))
            return tf.reduce_sum(tf.exp(tf.reduce_mean(x, 0)) * total)

        @front.function
        def exact(x):
            total.assign_add(tf.reduce_sum(x, 0))
            return x - total

        assert "not exact" not in exact.plan(np.eye(5))
        with pytest.raises(CaptureError, match=r"computed from a float64 of shape \(5,\) made by 'Exp' .* the call"):
            step(np.eye(5))


def test_a_result_of_each_replica_and_of_what_was_just_written():
    strategy = distribute(ResourceSpec.local(cpus=2), "PS", share_memory=False)
    with strategy.autodist:
        mean = tf.Variable(np.zeros(5), aggregation=tf.VariableAggregation.MEAN)
        x = examples(9)[0]
        (given,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x).unbatch().batch(9))

        def step(x):
            mean.assign(tf.reduce_mean(x, 0))
            return x - mean, tf.reduce_sum(mean)

        rows, total = strategy.run(step, args=(given,))
        np.testing.assert_allclose(strategy.gather(rows, 0), x - x.mean(0), atol=1e-12)
        np.testing.assert_allclose(strategy.experimental_local_results(total), [x.mean(0).sum()] * 2, atol=1e-12)


def _by_batch_size(front: Any) -> Any:
    weight = tf.Variable(np.ones(5))

    @front.function
    def step(x):
        n = _size(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.reduce_sum(x * weight, 1) - 1) ** 2) + 0.1 * tf.reduce_sum(weight**2) / n
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.1 * gradient)
        mean, total = tf.reduce_mean(x), tf.reduce_sum(x)
        return {
            "loss": loss, "1/n": 1 / n, "mean/n": mean / n, "sum/n/n": total / n / n, "sum*n": total * n,
            "penalty/n": tf.reduce_sum(weight**2) / n, "norm/n": tf.norm(gradient) / n, "n*n": n * n,
            "vector": tf.reduce_sum(x, 0) / n / n, "with penalty": total + 0.1 * tf.reduce_sum(weight**2) / n,
        }  # fmt: skip

    return {"seen": [step(x) for (x,) in batches(examples()[0])], "kept": values([weight])}


def _by_an_activation(front: Any) -> Any:
    lower, upper, noise, copy = (tf.Variable(np.full(shape, 0.3)) for shape in ((5, 4), (4, 1), (4,), (5, 4)))

    def loss(hidden, x):
        return tf.reduce_mean((tf.reduce_sum(tf.tanh(hidden) @ upper, 1) - x[:, 0]) ** 2)

    @front.function
    def step(x):
        with tf.GradientTape() as of_lower:
            hidden = x @ lower + noise
        with tf.GradientTape() as of_upper:
            of_upper.watch(hidden)
            found = loss(hidden, x)
        by_hidden, by_upper = of_upper.gradient(found, [hidden, upper])
        with tf.GradientTape() as again:
            surrogate = tf.reduce_sum((x @ copy) * tf.stop_gradient(by_hidden))
        copy.assign_sub(0.1 * again.gradient(surrogate, copy))
        lower.assign_sub(0.1 * of_lower.gradient(hidden, lower, output_gradients=by_hidden))
        upper.assign_sub(0.1 * by_upper)
        noise.assign_add(0.01 * tf.reduce_sum(by_hidden, 0))
        by_hand = tf.transpose(x) @ by_hidden
        return found, by_hidden, by_hand, tf.reduce_sum(by_hidden**2), surrogate, by_hidden * _size(x)

    return {"seen": [step(x) for (x,) in batches(examples()[0])], "kept": values([lower, upper, noise, copy])}


def _by_scaled_losses(front: Any) -> Any:
    weight = tf.Variable(np.ones(5))

    @front.function
    def step(x):
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum(x * weight, 1) ** 2 / _size(x)
            tape.watch(losses)
            loss = tf.reduce_sum(losses)
        by_losses = tape.gradient(loss, losses)
        weight.assign_sub(0.01 * tf.reduce_sum(by_losses[:, None] * x, 0) / _size(x))
        return loss, tf.reduce_mean(by_losses)

    return {"seen": [step(x) for (x,) in batches(examples()[0])], "kept": values([weight])}


@pytest.mark.parametrize("loop", [_of_what_was_written, _by_batch_size, _by_an_activation, _by_scaled_losses])
def test_results_equal_one_devices(loop: Any):
    assert_equal_loops(loop)
