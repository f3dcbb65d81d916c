"""Results that are made for the whole batch: with gradients, with variables just written, and with the batch size."""

from __future__ import annotations

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
            tf.norm(gradient) / _size(x), x @ weight, tf.reduce_sum(x) - mean,
        )

    return {"seen": [step(x) for (x,) in batches(examples()[0])], "kept": values([total, mean, weight])}


def test_results_of_the_batch_and_of_what_was_just_written_or_of_gradients():
    assert_equal_loops(_of_what_was_written)


def test_a_result_that_needs_what_cannot_be_joined_is_refused():
    with autodist(replicas=2) as front:
        total = tf.Variable(np.zeros(5))

        @front.function
        def step(x):
            total.assign_add(tf.reduce_sum(x, 0))
            return tf.reduce_sum(tf.exp(tf.reduce_mean(x, 0)) * total)

        assert "not exact" not in str(front.function(lambda x: x - total.assign_add(tf.reduce_sum(x, 0))).plan(np.eye(5)))
        with pytest.raises(CaptureError, match=r"computed from a float64 of shape \(5,\) made by 'Exp' .* after the call"):
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


def test_results_with_any_power_of_the_batch_size():
    assert_equal_loops(_by_batch_size)
