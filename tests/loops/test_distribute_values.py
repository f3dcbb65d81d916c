"""Values of each replica: what a function finds inside run(), what its results are, and batches of datasets."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_same
from tests.support.distributed import MEAN, SUM, numbers, replicas, replicas_on


def test_what_a_function_finds_inside():
    with replicas_on(numbers(7), count=3) as (strategy, batch):

        def inside(x):
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, x.dtype)
            total, mean = context.all_reduce("SUM", tf.reduce_sum(x)), context.all_reduce(MEAN, number)
            return number, total, mean, context.num_replicas_in_sync

        number, total, mean, count = strategy.run(inside, args=(batch,))
        assert [int(each) for each in strategy.experimental_local_results(number)] == [0, 1, 2]
        assert [float(each) for each in total.values] == [28.0] * 3
        assert [float(each) for each in mean.values] == [1.0] * 3
        assert [int(each) for each in strategy.experimental_local_results(count)] == [3] * 3
        assert strategy.num_replicas_in_sync == 3


def test_results_are_looked_at_reduced_and_gathered():
    with replicas_on(numbers(7), count=3) as (strategy, batch):
        doubled = strategy.run(lambda x: 2 * x, args=(batch,))
        assert [each.numpy().tolist() for each in strategy.experimental_local_results(doubled)] == [
            [2.0, 4.0, 6.0], [8.0, 10.0], [12.0, 14.0]
        ]  # fmt: skip
        assert strategy.gather(doubled, axis=0).numpy().tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
        assert strategy.reduce(SUM, doubled, axis=0).numpy().item() == 56.0
        assert strategy.reduce(MEAN, doubled, axis=0).numpy().item() == 8.0
        sums = strategy.run(lambda x: {"sum": tf.reduce_sum(x), "none": None}, args=(batch,))
        assert sums["none"] is None
        assert strategy.reduce("SUM", sums["sum"], axis=None).numpy().item() == 28.0
        assert strategy.reduce(MEAN, sums["sum"], axis=None).numpy().item() == pytest.approx(28 / 3, rel=1e-15)
        with pytest.raises(ValueError, match="SUM or MEAN"):
            strategy.reduce("MAX", doubled, axis=0)
        pairs = strategy.run(lambda x: tf.stack([x, 3.0 * x], 1), args=(batch,))
        assert [strategy.reduce(op, pairs, axis=(0, -1)).numpy().item() for op in (SUM, MEAN)] == [112.0, 8.0]
        plain = tf.constant([[1.0, 2.0], [3.0, 6.0]])  # the same value on each replica, as with MirroredStrategy
        assert strategy.reduce("SUM", plain, axis=0).numpy().tolist() == [12.0, 24.0]
        assert strategy.reduce("MEAN", plain, axis=(0, 1)).numpy().item() == 3.0
        with pytest.raises(ValueError, match="not a value of each replica"):
            strategy.reduce(SUM, tf.constant(1.0), axis=None)


def test_values_of_each_replica_are_arguments():
    with replicas(count=3) as strategy:
        own = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(10.0 * context.replica_id_in_sync_group)
        )
        found = strategy.run(lambda value, offset: value + offset, args=(own,), kwargs={"offset": tf.constant(1.0)})
        assert [each.numpy().item() for each in found.values] == [1.0, 11.0, 21.0]
        again = strategy.run(lambda value: 2 * value, args=(found,))
        assert [each.numpy().item() for each in again.values] == [2.0, 22.0, 42.0]
        alike = strategy.run(lambda: tf.constant(3))
        assert [each.numpy().item() for each in alike.values] == [3, 3, 3]


def test_rows_of_all_replicas_inside_run():
    """Scores of each example with the whole batch: every replica has its own rows of them, and all columns."""
    random = np.random.default_rng(5)
    x, start = random.normal(size=(7, 4)), random.normal(size=(4, 3))

    def train(weight, batch, gather):
        with tf.GradientTape() as tape:
            own = tf.tanh(batch @ weight)
            scores = tf.matmul(own, gather(own), transpose_b=True)
            loss = tf.reduce_sum(tf.reduce_logsumexp(scores, axis=1)) / len(x)
        weight.assign_sub(0.5 * tape.gradient(loss, weight))
        return scores

    plain, weight = tf.Variable(start), tf.Variable(start)
    for _ in range(2):
        expected = train(plain, tf.constant(x), lambda own: own)
    with replicas(count=3) as strategy:
        data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x).repeat(2))
        context = tf.distribute.get_replica_context
        for batch in data:
            arguments = (weight, batch, lambda own: context().all_gather(own, 0))
            assert "not exact" not in strategy.plan(train, args=arguments)
            scores = strategy.run(train, args=arguments)
        per_replica = strategy.experimental_local_results(
            strategy.run(lambda x: context().all_gather(x, axis=1), args=(tf.constant([[1.0, 2.0]]),))
        )
    assert_same(
        {"weight": weight.numpy(), "scores": strategy.gather(scores, 0).numpy()},
        {"weight": plain.numpy(), "scores": expected.numpy()},
    )
    assert per_replica[0].numpy().tolist() == [[1.0, 2.0] * 3]


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
