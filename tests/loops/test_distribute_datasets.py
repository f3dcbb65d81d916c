"""Distributed datasets and their iterators, in Python and inside a tf.function."""

import pytest
import tensorflow as tf

from tests.support.distributed import SUM, numbers, replicas


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_replicas_without_examples_count_nothing(traced: bool):
    with replicas(count=3) as strategy:

        def total(batches):
            found = tf.constant(0.0, tf.float64)
            for batch in batches:
                found += strategy.reduce(SUM, strategy.run(tf.reduce_sum, args=(batch,)), axis=None)
                found += strategy.reduce(SUM, strategy.run(lambda x: x, args=(batch,)), axis=0)
            return found

        batches = strategy.experimental_distribute_dataset(numbers(5, 4))
        assert (tf.function(total) if traced else total)(batches).numpy().item() == 30.0


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_datasets_from_a_function_have_a_batch_for_each_replica(traced: bool):
    contexts = []

    def made(context):
        contexts.append((context.num_replicas_in_sync, context.get_per_replica_batch_size(4)))
        return numbers(5, 2)

    with replicas(count=2) as strategy:

        def sums(batches):
            found = tf.zeros([0], tf.float64)
            for batch in batches:
                each = strategy.run(tf.reduce_sum, args=(batch,))
                found = tf.concat([found, tf.stack(strategy.experimental_local_results(each))], 0)
                if traced:
                    found = tf.ensure_shape(found, [None])
            return found

        def folded(batches):
            return batches.reduce(
                tf.zeros([], tf.float64),
                lambda total, batch: total + strategy.reduce(SUM, strategy.run(tf.reduce_sum, args=(batch,)), None),
            )

        batches = strategy.distribute_datasets_from_function(made)
        if traced:
            assert tf.function(folded)(batches).numpy().item() == 15.0
        else:
            assert sums(batches).numpy().tolist() == [3.0, 7.0, 5.0, 0.0]
            assert folded(batches).numpy().item() == 15.0
    assert contexts == [(2, 2)]
