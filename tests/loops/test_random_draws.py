"""Random numbers that a marked function or a function of run() draws: an explicit seed says which."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec
from tests.support.distributed import replicas
from tests.support.loop_steps import TrainedBy
from tests.support.loops import Net, assert_equal_loops, autodist, run_marked, run_plain


def _draw(net: Net) -> Any:
    dropout, generator = keras.layers.Dropout(0.3), tf.random.Generator.from_seed(3)

    def step(x, y):
        x = dropout(x + 0.1 * generator.normal(tf.shape(x), dtype=tf.float64), training=True)
        x = x + tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=tf.float64)
        return net.train(lambda: net.loss(x, y))

    return step, [*dropout.variables, generator.state]


DRAWS = TrainedBy(_draw)


def test_one_replica_draws_the_numbers_of_one_device():
    expected, actual = run_plain(DRAWS), run_marked(DRAWS, "PS", 1)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, actual[name], err_msg=name)


@pytest.mark.parametrize("strategy", ["PS", "AllReduce"])
def test_replicas_draw_numbers_of_their_own_and_leave_one_devices_state(strategy: str):
    expected, actual = run_plain(DRAWS), run_marked(DRAWS, strategy, 2)
    assert not np.array_equal(expected["seen/0"], actual["seen/0"])
    np.testing.assert_array_equal(expected["weights/3"], actual["weights/3"])  # the state of the dropout's generator
    again = run_marked(DRAWS, strategy, 2)
    assert all(np.array_equal(value, again[name]) for name, value in actual.items())


def _features(net: Net) -> Any:
    """A random projection, the same noise for each example, and weights of one draw: the batch has no part in these."""
    seed = tf.Variable([5, 6], name="seed")

    def step(x, y):
        projected = x @ tf.random.stateless_normal([5, 5], [1, 2], dtype=tf.float64)
        noisy = tf.map_fn(lambda row: row + keras.random.normal((5,), seed=3, dtype="float64"), projected)
        counts = keras.random.dropout(tf.ones([5], tf.float64), 0.5, seed=4) + tf.random.stateless_uniform(
            [5], seed, dtype=tf.float64
        )
        loss = net.train(lambda: net.loss(noisy * counts, y))
        seed.assign_add([0, 1])
        return loss, projected, counts

    return step, [seed]


@pytest.mark.parametrize("strategy", ["PS", "AllReduce"])
def test_draws_from_explicit_seeds_that_do_not_depend_on_the_batch_are_one_devices(strategy: str):
    assert_equal_loops(TrainedBy(_features), strategy)


def test_the_layers_that_draw_are_named():
    model = keras.Sequential([keras.layers.Dropout(0.5, name="drop"), keras.layers.GaussianNoise(1.0, name="noise")])
    with autodist() as front:
        plan = front.function(lambda x: model(x, training=True)).plan(np.ones((6, 4)))
    assert "random numbers in drop, noise; replica 0" in plan


def test_other_draws_from_explicit_seeds_are_said_to_be_not_exact_everywhere(caplog):
    weight = tf.Variable(np.ones(4), name="weight")
    place = "stateless_random_normal/StatelessRandomNormalV2"
    note = f"not exact: each replica draws its own random numbers in {place} from an explicit seed, and one device"

    def step(x):
        noise = tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=tf.float64)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(((x + noise) @ weight[:, None] - 1.0) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))

    x = np.ones((6, 4))
    with autodist() as front:
        marked = front.function(step)
        table = marked.verify(x)
        assert "note" not in table and "verdict: equal to one device" in table, "verify gives both the same draws"
        assert f"\n  note: {note}" in marked.plan(x)
        marked(x)
        with autodist(replicas=1) as alone:
            assert "random numbers" not in alone.function(step).plan(x)
    (said,) = [each.getMessage() for each in caplog.records if "not exact" in each.getMessage()]
    assert said.startswith(f"step: {note}") and said.endswith(". verify() compares with one device.")


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
