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


def test_an_iterator_gives_elements_inside_a_function(strategy):
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(np.arange(7.0)).batch(3))

    @tf.function
    def two_steps(iterator):
        total = tf.constant(0.0, tf.float64)
        for _ in tf.range(2):
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(next(iterator),)), axis=None)
        return total

    iterator = iter(dataset)
    assert float(two_steps(iterator)) == sum(range(6))
    assert [float(part) for part in strategy.experimental_local_results(next(iterator))[0]] == [6.0]
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(tf.errors.OutOfRangeError):
        two_steps(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(np.ones(2)))))


def test_a_loop_over_an_iterator_is_refused_with_the_line_to_write(strategy):
    iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))

    @tf.function
    def epoch(iterator):
        for element in iterator:
            strategy.run(tf.reduce_sum, args=(element,))

    with pytest.raises(NotImplementedError, match="Write `for element in dataset:`"):
        epoch(iterator)


def test_errors_of_a_step_come_out_of_the_users_function_as_they_are(strategy):
    weight = tf.Variable(1.0, dtype=tf.float64)
    inner_fails = []

    def step(x):
        tf.debugging.assert_positive(x, message="no negative numbers")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * weight)
        weight.assign_sub(0.125 * tape.gradient(loss, weight))
        return tf.reduce_sum(x)

    @tf.function
    def epoch(dataset, name):
        total = tf.constant(0.0, tf.float64)
        for element in dataset:
            total += strategy.reduce("SUM", strategy.run(step, args=(element,)), axis=None)
        return total

    def distributed(numbers):
        return strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(numbers).batch(4))

    good, bad = np.arange(1.0, 9.0), np.array([1.0] * 4 + [-1.0] * 4)

    def eagerly():
        for element in distributed(bad):
            strategy.run(step, args=(element,))

    for how in (eagerly, lambda: epoch(distributed(bad), 1), lambda: tf.function(lambda: epoch(distributed(bad), 1))()):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no negative numbers") as raised:
            how()
        inner_fails.append(str(raised.value).splitlines()[0])
        assert float(epoch(distributed(good), 1)) == 36.0
    assert len(set(inner_fails)) == 1
    # Whatever runs while another one of the strategy's runs is ours to refuse.
    own = tf.function(lambda: strategy.run(lambda: tf.py_function(lambda: epoch(distributed(good), 1), [], tf.float64)))
    with pytest.raises(tf.errors.UnknownError, match=r"SessionError: .*is called while"):
        own()
    # An error that is none of a run stays what it is.
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing of a run"):
        tf.function(lambda: (epoch(distributed(good), 1), tf.debugging.assert_positive(-1.0, "nothing of a run")))()
