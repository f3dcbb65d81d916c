"""Random numbers in a function of run(): an explicit seed says what is drawn, and generators differ by the replica."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec
from tests.support.distributed import replicas


def _rows() -> tf.data.Dataset:
    """Examples of equal features, each with a seed of its own."""
    seeds = np.stack([np.arange(6), np.zeros(6)], axis=1).astype("int32")
    return tf.data.Dataset.from_tensor_slices((np.ones((6, 4)), seeds)).batch(6)


def _of_each_example(x: Any, seeds: Any) -> Any:
    return tf.map_fn(
        lambda each: each[0] + tf.random.stateless_normal([4], each[1], dtype=tf.float64), (x, seeds),
        fn_output_signature=tf.float64,
    )


def test_an_explicit_seed_gives_every_replica_the_numbers_of_one_device():
    count = tf.Variable(3, trainable=False)

    @tf.function
    def nested(x: Any, seed: Any) -> Any:
        return x + tf.random.stateless_uniform([4], seed, dtype=tf.float64)

    def fixed(x: Any, seeds: Any) -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return (
            tf.random.stateless_normal([3], [1, 2]), tf.random.stateless_uniform([3], tf.stack([count, 7])),
            nested(x, [1, 2]), _of_each_example(x, seeds), x @ keras.random.normal((4, 2), seed=3, dtype="float64"),
            tf.image.stateless_random_crop(x, [tf.shape(x)[0], 2], seed=[1, 2]),
            tf.random.stateless_uniform([2], [1, number - number]),
        )

    def folded(x: Any) -> Any:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.random.stateless_uniform([2], tf.random.experimental.stateless_fold_in([1, 2], number))

    (batch,) = _rows()
    with replicas(count=2) as strategy:
        (halves,) = strategy.experimental_distribute_dataset(_rows())
        found, plan = strategy.run(fixed, args=halves), strategy.plan(fixed, args=halves)
        assert "random numbers" not in str(plan)
        with tf.distribute.get_strategy().scope():
            expected = tf.distribute.get_strategy().run(fixed, args=batch)
        for one, each in zip(expected, found, strict=True):
            first, second = (part.numpy() for part in strategy.experimental_local_results(each))
            if one.shape.rank == 1:
                np.testing.assert_array_equal(one, first)
                np.testing.assert_array_equal(one, second)
            else:
                np.testing.assert_allclose(one, np.concatenate([first, second]), rtol=1e-12)
        values = strategy.experimental_local_results(strategy.run(folded, args=halves[:1]))
        for number, value in enumerate(values):
            seed = tf.random.experimental.stateless_fold_in([1, 2], number)
            np.testing.assert_array_equal(value, tf.random.stateless_uniform([2], seed))


def test_generators_draw_other_numbers_on_each_replica_also_beside_an_explicit_seed():
    dropout, generator = keras.layers.Dropout(0.5, seed=1), keras.random.SeedGenerator(2)
    state = tf.random.Generator.from_seed(3)

    @tf.function
    def draw(seed: Any) -> Any:
        return tf.random.stateless_uniform([8], seed)

    @tf.function
    def both(seed: Any) -> Any:
        return tf.random.stateless_uniform([8], seed), tf.random.stateless_uniform([8], generator.next())

    def step() -> Any:
        explicit, own = both([1, 2])
        _, turns = tf.while_loop(
            lambda turn, _: turn < 3,
            lambda turn, _: (turn + 1, keras.random.normal((8,), seed=generator, dtype="float32")), (0, tf.zeros([8])),
        )
        drawn = own, turns, dropout(tf.ones([8]), training=True), state.normal([8]), tf.random.normal([8], seed=4)
        return (explicit, draw([1, 2])), (*drawn, draw(tf.cast(generator.next(), tf.int32)))

    with replicas(count=2) as strategy:
        equal, own = strategy.run(step)
        for value in equal:
            first, second = strategy.experimental_local_results(value)
            np.testing.assert_array_equal(first, tf.random.stateless_uniform([8], [1, 2]))
            np.testing.assert_array_equal(first, second)
        for value in own:
            first, second = strategy.experimental_local_results(value)
            assert not np.array_equal(first, second)
        note = next(line for line in str(strategy.plan(step)).splitlines() if "its own random numbers" in line)
        assert "in StatefulPartitionedCall, while, dropout and 3 more;" in note


def test_seeds_in_the_batchs_rows_are_the_examples_own_in_marked_functions():
    (batch,) = _rows()
    with AutoDist(ResourceSpec.local(cpus=2), "PS", share_memory=False) as distributed:
        noisy = distributed.function(_of_each_example)
        np.testing.assert_array_equal(_of_each_example(*batch), noisy(*batch))
        assert "random numbers" not in str(noisy.plan(*batch))
        fixed = distributed.function(lambda x: x + tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=tf.float64))
        assert "its own random numbers" in str(fixed.plan(batch[0]))
