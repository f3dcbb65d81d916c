"""Loops without `fit` over distributed datasets: the machines run these, too, and `run()` feeds what was computed."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime.data_pipelines import on_machines
from tests.cluster.hurting import kill
from tests.cluster.over_hosts import nothing_left, sent_by
from tests.support.distributed import over
from tests.support.made_data import made

pytestmark = [pytest.mark.usefixtures("float64", "known_hosts"), pytest.mark.long]
SIZE = 50
ON_MACHINES, FED = "each machine runs its tf.data pipeline", "a distributed dataset: fed each step"


def shuffled():
    """Batches of 50 images, the last one of 20. Two shuffles draw seeds."""
    keras.utils.set_random_seed(5)
    return tf.data.Dataset.range(220).shuffle(50).map(made, num_parallel_calls=2).shuffle(30).batch(SIZE).prefetch(2)


class Line:
    """A linear model, and its step: the loss, and the gradient of a part of the batch."""

    def __init__(self):
        self.kernel = tf.Variable(tf.zeros([500, 1], tf.float64), name="kernel")

    def step(self, inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ self.kernel - y) ** 2) / SIZE
        self.kernel.assign_sub(1e-3 * tape.gradient(loss, self.kernel))
        return loss


def alone(epochs=3):
    """The losses and the weights of one device."""
    line, dataset = Line(), shuffled()
    return [float(line.step(batch)) for _ in range(epochs) for batch in dataset], line.kernel.numpy()


def assert_equal(expected, losses, line):
    np.testing.assert_allclose(losses, expected[0], rtol=1e-12)
    np.testing.assert_allclose(line.kernel.numpy(), expected[1], rtol=1e-12)


@pytest.mark.parametrize("builder", ["PS", "AllReduce"])
def test_the_machines_make_the_batches_of_a_loop(network, caplog, builder):
    """Uneven machines and a smaller last batch, three epochs; an iterator that a traced function uses in between."""
    caplog.set_level(logging.INFO, "autodist")
    expected, line = alone(), Line()
    bytes_sent, losses = [], []
    skip = tf.function(lambda iterator: tf.nest.map_structure(tf.identity, next(iterator)))
    with over(network.pair(1, 2), builder) as strategy:
        dataset = strategy.experimental_distribute_dataset(shuffled())

        def run(element):
            losses.append(float(strategy.reduce("SUM", strategy.run(line.step, (element,)), axis=None)))

        for epoch in range(3):
            iterator = iter(dataset)
            for batch in range(5):
                # A traced function takes the batch, and what it returns is fed.
                element = skip(iterator) if (epoch, batch) == (1, 2) else next(iterator)
                bytes_sent.append(sent_by(network, lambda element=element: run(element))[0])
            with pytest.raises(StopIteration):
                next(iterator)
        assert ON_MACHINES in caplog.text
        words = "a distributed dataset: a tf.function takes batches of its iterator, and these are fed"
        assert caplog.messages.count(words) == 1
    assert_equal(expected, losses, line)
    assert FED not in caplog.text
    # Two thirds of a batch are 133 kB. The first batch, the one of the traced function and the one behind it are fed.
    fed = [number for number, each in enumerate(bytes_sent) if each > 100_000]
    assert fed == [0, 7, 8], bytes_sent
    assert nothing_left(network) == []


def test_a_batch_on_which_a_loop_runs_again_is_fed(network):
    """The machines make the first use of each batch, and its second use does not make them miss the next batch."""
    expected, line = alone(2), Line()
    first, again, losses = [], [], []
    with over(network.pair(1, 2)) as strategy:
        dataset = strategy.experimental_distribute_dataset(shuffled())
        for element in (element for _ in range(2) for element in dataset):
            before = network.hosts[0].sent_bytes()
            losses.append(float(strategy.reduce("SUM", strategy.run(line.step, (element,)), axis=None)))
            between = network.hosts[0].sent_bytes()
            strategy.reduce("SUM", strategy.run(lambda inputs: tf.reduce_sum(inputs[0]), (element,)), axis=None)
            first.append(between - before)
            again.append(network.hosts[0].sent_bytes() - between)
    assert_equal(expected, losses, line)
    # The last batch of an epoch has only 20 rows.
    assert max(first[1:]) < 100_000 < min(again[:4] + again[5:9]), (first, again)


def test_what_is_computed_of_the_elements_is_fed(network, caplog):
    """A loop that changes the elements, or hands only some of the replicas' values over, has the same numbers."""
    caplog.set_level(logging.INFO, "autodist")
    expected, line = alone(1), Line()
    losses = []
    with over(network.pair(1, 2)) as strategy:
        for number, (x, y) in enumerate(strategy.experimental_distribute_dataset(shuffled())):
            changed = strategy.run(lambda value: value * 1.0, (x,)) if number % 2 else x
            losses.append(float(strategy.reduce("SUM", strategy.run(line.step, ((changed, y),)), axis=None)))
        reason = "it runs Python functions (py_function or numpy_function)"
        python = shuffled().map(lambda x, y: (tf.numpy_function(np.copy, [x], tf.float64), y))
        iter(strategy.experimental_distribute_dataset(python))
        assert f"a distributed dataset: fed each step: {reason}" in caplog.text
        large = tf.data.Dataset.from_tensor_slices(np.zeros((3000, 50))).batch(5)
        iter(strategy.experimental_distribute_dataset(large))
        assert "a distributed dataset: fed each step: it has 1.1 MiB, and such ones travel up to 1.0 MiB" in caplog.text
    assert_equal(expected, losses, line)


def test_a_loop_goes_on_when_a_machine_is_lost(network):
    """The steps that are repeated are fed. After these, the machines make the batches again."""
    expected, line, bytes_sent, losses = alone(), Line(), [], []
    with over(network.pair(1, 2), on_failure="restart", lost_after=5.0) as strategy:
        dataset = strategy.experimental_distribute_dataset(shuffled())
        for _ in range(3):
            for element in dataset:
                if len(losses) == 7:
                    kill(network.hosts[1])
                before = network.hosts[0].sent_bytes()
                losses.append(float(strategy.reduce("SUM", strategy.run(line.step, (element,)), axis=None)))
                bytes_sent.append(network.hosts[0].sent_bytes() - before)
    assert_equal(expected, losses, line)
    assert max(bytes_sent[-4:]) < 100_000


def test_datasets_that_are_made_anew_take_the_place_of_old_ones(network, monkeypatch):
    """One for each epoch, as many loops make them: the machines have one place for them."""
    places = []

    class Place(on_machines.PipelineSlot):
        def __init__(self, name, *rest):
            super().__init__(name, *rest)
            places.append(name)

    monkeypatch.setattr(on_machines, "PipelineSlot", Place)
    line = Line()
    with over(network.pair(1, 2)) as strategy:
        for _ in range(4):
            for element in strategy.experimental_distribute_dataset(shuffled()):
                strategy.run(line.step, (element,))
    assert places == ["pipeline0"]
