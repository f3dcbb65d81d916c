"""Random numbers that a marked function draws."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

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
