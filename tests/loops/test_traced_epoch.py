"""An epoch as one `tf.function`: numbers that its loop counts with, its iterators and its errors."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.support.distributed import over, replicas
from tests.support.loops import descend


@pytest.fixture
def strategy():
    with replicas(count=2) as made:
        yield made


@pytest.fixture
def seven(strategy):
    """The numbers from 0 to 6 in batches of three."""
    return strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(np.arange(7.0)).batch(3))


def test_numbers_count_batches_and_add_results_up(strategy, seven):
    @tf.function
    def epoch(dataset):
        total, batches, halves = tf.constant(0.0, tf.float64), 0, 1.0
        for element in dataset:
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(element,)), axis=None)
            batches += 1
            halves = halves / 2
        return total, batches, halves

    total, batches, halves = epoch(seven)
    assert (total.dtype, float(total), int(batches), float(halves)) == (tf.float64, 21.0, 3, 0.125)


def test_the_log_says_once_that_a_loop_in_a_function_is_fed(caplog):
    """A loop over a dataset that is an argument, or that the function finds. On one machine nothing is said."""
    nodes = [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]
    batches = tf.data.Dataset.range(7).batch(3)

    def count(dataset):
        found = 0
        for _ in dataset:
            found += 1
        return found

    for spec, said in (({"nodes": nodes}, 1), ({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, 0)):
        with over(spec) as strategy:
            for wrap in (lambda dataset: (count, dataset), lambda dataset: (lambda: count(dataset),)):
                caplog.clear()
                called, *arguments = wrap(strategy.experimental_distribute_dataset(batches))
                epoch = tf.function(called)
                assert [int(epoch(*arguments)) for _ in range(2)] == [3, 3]
                words = "a distributed dataset: fed each step: the loop over it is in a tf.function"
                assert caplog.messages.count(words) == said


def test_an_iterator_gives_elements_inside_a_function(strategy, seven):
    @tf.function
    def two_steps(iterator):
        total = tf.constant(0.0, tf.float64)
        for _ in tf.range(2):
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(next(iterator),)), axis=None)
        return total

    iterator = iter(seven)
    assert float(two_steps(iterator)) == sum(range(6))
    assert [float(part) for part in strategy.experimental_local_results(next(iterator))[0]] == [6.0]
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(tf.errors.OutOfRangeError):
        two_steps(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(np.ones(2)))))


def test_a_loop_over_an_iterator_ends_with_the_data_or_earlier(strategy, seven):
    @tf.function
    def epoch(iterator, most):
        total = tf.constant(0.0, tf.float64)
        for element in iterator:
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(element,)), axis=None)
            if total > most:
                break
        return total

    assert float(epoch(iter(seven), 100.0)) == 21.0
    iterator = iter(seven)
    assert [float(epoch(iterator, 10.0)) for _ in range(3)] == [15.0, 6.0, 0.0]


def test_a_function_uses_what_its_runs_train(strategy, seven):
    """Two runs, one of them in a loop, and operations on the variable, which is the only copy on one machine."""
    weight = tf.Variable(1.0, dtype=tf.float64, name="weight")

    def change(x):
        descend(lambda: tf.reduce_sum(x * weight), weight, rate=-1.0)

    @tf.function
    def epoch(dataset, last):
        for element in dataset:
            strategy.run(change, args=(element,))
        strategy.run(change, args=(last,))
        seen = 2 * weight
        weight.assign(0.5 * weight)
        return seen

    expected, last = 1.0, next(iter(seven))
    for _ in range(3):
        expected += 21.0 + 3.0
        assert float(epoch(seven, last)) == 2 * expected
        expected /= 2
        assert float(weight) == expected


@pytest.mark.oldest
def test_datasets_and_iterators_that_are_made_for_each_epoch_share_a_trace(strategy):
    traces, gone, offset = [], [], tf.Variable(0.0, dtype=tf.float64)

    def change(x):
        descend(lambda: tf.reduce_sum(x * offset), offset)

    @tf.function
    def epoch(data):
        traces.append(type(data).__name__)
        total = tf.constant(0.0, tf.float64)
        for element in data:
            total += strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(element,)), axis=None)
        return total

    @tf.function
    def first_of(iterator):
        traces.append("next")
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(next(iterator),)), axis=None)

    def one_epoch(turn):
        strategy.run(change, args=(tf.constant(-0.5, tf.float64),))  # the offset is one more now
        data = tf.data.Dataset.from_tensor_slices(np.arange(1.0, 8.0 + turn)).batch(3)
        distributed = strategy.experimental_distribute_dataset(data.map(lambda x: x + offset))
        gone.extend([weakref.ref(data), weakref.ref(distributed)])
        expected = sum(range(8 + turn)) + (7 + turn) * (1 + turn)
        assert float(epoch(distributed)) == float(epoch(iter(distributed))) == expected
        assert float(first_of(iter(distributed))) == 6.0 + 3 * (1 + turn)
        return data

    for turn in range(4):
        data = one_epoch(turn)
    assert traces == ["DistributedDataset", "DistributedIterator", "next"]
    epoch(strategy.distribute_datasets_from_function(lambda context, data=data: data))
    epoch(strategy.experimental_distribute_dataset(data.map(lambda x: x[:, tf.newaxis])))
    assert len(traces) == 5, "elements that are made in another way or are of another shape have a trace of their own"
    del data
    gc.collect()
    assert [reference() for reference in gone] == [None] * 8


def test_a_function_with_a_signature_takes_elements(strategy, seven):
    traces = []

    @tf.function(input_signature=[seven.element_spec])
    def total(element):
        traces.append(element)
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(element,)), axis=None)

    assert [float(total(element)) for element in seven] == [3.0, 12.0, 6.0]
    assert len(traces) == 1


def test_errors_of_a_step_come_out_of_the_users_function_in_words(strategy):
    weight = tf.Variable(1.0, dtype=tf.float64)
    inner_fails = []

    def step(x):
        tf.debugging.assert_positive(x, message="no negative numbers")
        descend(lambda: tf.reduce_sum(x * weight), weight, 0.125)
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

    words = r"(?s)^in step: .*no negative numbers.*made at File .*test_traced_epoch.py.* in step: tf.debugging.assert"
    for how in (eagerly, lambda: epoch(distributed(bad), 1), lambda: tf.function(lambda: epoch(distributed(bad), 1))()):
        before = float(weight)
        with pytest.raises(tf.errors.InvalidArgumentError, match=words) as raised:
            how()
        assert float(weight) == before - 0.5, "the first batch of the two was trained"
        inner_fails.append(str(raised.value).splitlines()[0])
        assert float(epoch(distributed(good), 1)) == 36.0
    assert len(set(inner_fails)) == 1
    # Whatever runs while another one of the strategy's runs is ours to refuse.
    one = tf.constant(1.0, tf.float64)

    def run_again():
        return strategy.run(step, args=(one,))

    own = tf.function(lambda: strategy.run(lambda: tf.py_function(run_again, [], tf.float64)))
    with pytest.raises(tf.errors.UnknownError, match=r"SessionError: .*is called while"):
        own()
    # An error that is none of a run stays what it is.
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing of a run"):
        tf.function(lambda: (epoch(distributed(good), 1), tf.debugging.assert_positive(-1.0, "nothing of a run")))()


ONE_THREAD = """
import faulthandler
import tensorflow as tf
import autodist_core

faulthandler.dump_traceback_later(60, exit=True)
tf.config.threading.set_inter_op_parallelism_threads(1)
strategy = autodist_core.distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "AllReduce")
weight = tf.Variable(1.0)

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * weight)
    weight.assign_sub(tape.gradient(loss, weight))
    return loss

@tf.function
def epoch(dataset):
    total = 0.0
    for element in dataset:
        total += strategy.reduce("SUM", strategy.run(step, args=(element,)), axis=None)
    return total

data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0, 4.0]).batch(2)
print(float(epoch(strategy.experimental_distribute_dataset(data))), float(weight))
"""


def test_a_run_in_a_function_takes_no_thread_of_tensorflow_while_it_waits(tmp_path):
    """On a machine with one processor, TensorFlow has one thread for all functions."""
    program = tmp_path / "one_thread.py"
    program.write_text(ONE_THREAD)
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    # The losses are 3 and 7 x (1 - 3): each step takes the sum of its examples from the weight.
    assert run.stdout.split() == ["-11.0", "-9.0"], run.stderr[-2000:]
