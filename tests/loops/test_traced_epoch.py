"""An epoch as one `tf.function`: Python numbers that its loop counts with."""

import numpy as np
import pytest
import tensorflow as tf

import autodist_core


@pytest.fixture
def strategy():
    made = autodist_core.distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "PS")
    yield made
    made.autodist.close()


def test_numbers_of_plain_python_count_batches_and_add_results_up(strategy):
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(np.arange(7.0)).batch(3))

    @tf.function
    def epoch(dataset):
        total, batches, halves = 0, 0, 1.0
        for element in dataset:
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(element,)), axis=None)
            batches += 1
            halves = halves / 2
        return total, batches, halves

    total, batches, halves = epoch(dataset)
    assert (total.dtype, float(total), int(batches), float(halves)) == (tf.float64, 21.0, 3, 0.125)
