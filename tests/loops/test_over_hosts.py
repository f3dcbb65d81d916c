"""A loop over two hosts gives the numbers of one device, and what it has trained when a host is lost."""

import logging
import os
import re
import signal
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import AutoDist, distribute
from autodist_core.errors import NodeLostError
from autodist_core.strategy import BUILDERS, AllReduce
from tests.cluster.hurting import agents, kill
from tests.cluster.over_hosts import nothing_left
from tests.support.compare import assert_same, flat
from tests.support.distributed import epochs, over
from tests.support.loops import SEED, Net, Plain, batches, descend, examples, run_plain, values
from tests.support.waiting import until

HOSTS = 2


@pytest.fixture(autouse=True)
def known_hosts(network, monkeypatch):
    monkeypatch.setenv("HOME", str(network.home))
    yield
    assert nothing_left(network) == []


def everything(front: Any) -> Any:
    """Networks with optimizers of two kinds, metrics, a rate as an argument, and predictions."""
    keras.utils.set_random_seed(SEED)
    net, mean, accuracy = Net(), keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.02)
    of_batch = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @front.function
    def step(x, y, rate):
        with tf.GradientTape(persistent=True) as tape:
            predicted = model(x, training=True)
            one, other = net.loss(x, y), of_batch(y, predicted)
        net.descend(tape.gradient(one, net.variables), rate)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(other, variables), variables, strict=True))
        mean.update_state(one)
        accuracy.update_state(y, predicted)
        return one, other

    predict = front.function(lambda x: (net(x), model(x)))
    seen = []
    for turn, (x, y) in enumerate(batches(*examples())):
        seen += [step(x, y, tf.constant(0.2 / (1 + turn), tf.float64)), mean.result(), accuracy.result(), predict(x)]
        if turn == 1:
            mean.reset_state()
            net.bias.assign_add(tf.ones(7, tf.float64))
    return {"seen": seen, "weights": values(net.variables, model.weights), "optimizer": values(optimizer.variables)}


@pytest.mark.quick("PartitionedPS")
@pytest.mark.parametrize("strategy", BUILDERS)
def test_a_loop_over_uneven_hosts_equals_one_device(network, strategy: str):
    with AutoDist(network.spec(cpus=[1, 2]), strategy) as front:
        actual = flat(everything(front))
    assert_same(run_plain(everything), actual)


def test_a_traced_epoch_over_uneven_hosts_equals_one_device(network):
    with over(network.spec(cpus=[1, 2]), "UnevenPartitionedPS") as strategy:
        actual = epochs(strategy, "Adam", True)
    assert_same(epochs(tf.distribute.get_strategy(), "Adam", False), actual)


def test_inputs_of_several_lengths_have_factors_of_several_lengths(network):
    """A replica has more rows of one input than of the other one, and none has the most of both."""
    random = np.random.default_rng(4)
    few, many = ([random.normal(size=(rows, 4)) for rows in lengths] for lengths in ((3, 2), (5, 8)))
    kernels = [random.normal(size=(4, 3)) for _ in range(2)]

    def trained(strategy: Any, *inputs: Any) -> list[np.ndarray]:
        variables = [tf.Variable(kernel) for kernel in kernels]

        def step(*batch: Any) -> None:
            def loss() -> Any:
                outputs = [tf.tanh(x @ variable) for x, variable in zip(batch, variables, strict=True)]
                return tf.add_n([tf.reduce_sum(tf.square(output - 0.5)) for output in outputs])

            descend(loss, variables, 0.1)

        for _ in range(2):
            strategy.run(step, args=inputs)
        return values(variables)

    with over(network.spec(), AllReduce(factor_rows=100)) as strategy:
        actual = trained(strategy, *(
            strategy.experimental_distribute_values_from_function(
                lambda context, of_each=of_each: tf.constant(of_each[context.replica_id_in_sync_group])
            )
            for of_each in (few, many)
        ))  # fmt: skip
    whole = (tf.constant(np.concatenate(of_each)) for of_each in (few, many))
    expected = trained(tf.distribute.get_strategy(), *whole)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def counting(front: Any, net: Net, steps: tf.Variable) -> Any:
    momentum = [tf.Variable(tf.zeros_like(each)) for each in net.variables]

    @front.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = net.loss(x, y)
        for slot, gradient in zip(momentum, tape.gradient(loss, net.variables), strict=True):
            slot.assign(0.9 * slot + gradient)
        net.descend(momentum)
        steps.assign_add(1)
        return loss

    return step, momentum


def on_one_device(count: int) -> dict:
    net, steps = Net(), tf.Variable(0, dtype=tf.int64)
    step, momentum = counting(Plain(), net, steps)
    for _ in range(count):
        step(*examples(13))
    return flat(values(net.variables, momentum, [steps]))


@pytest.mark.parametrize("strategy", ["PS", "AllReduce"])
def test_a_lost_host_ends_the_loop_and_what_was_trained_is_kept(network, strategy: str, caplog):
    host, batch = network.hosts[1], examples(13)
    net, steps = Net(), tf.Variable(0, dtype=tf.int64)
    with AutoDist(network.spec(), strategy, lost_after=600.0) as front:
        step, momentum = counting(front, net, steps)
        losses = [step(*batch)]
        with caplog.at_level(logging.DEBUG, logger="autodist"):
            safe = re.compile(r"after training step [1-9]\d* is safe")
            until(lambda: losses.append(step(*batch)) or safe.search(caplog.text))
        kill(host)
        with pytest.raises(NodeLostError, match=rf"(?s){host.address} was lost during training step \d+") as raised:
            while True:
                losses.append(step(*batch))
        assert raised.value.host == host.address
        kept = int(steps)
        assert f"after training step {kept}" in str(raised.value) and 0 < kept <= len(losses)
        assert_same(on_one_device(kept), flat(values(net.variables, momentum, [steps])))
        until(lambda: not agents(host))
        step(*batch)  # on new agents
        assert_same(on_one_device(kept + 1), flat(values(net.variables, momentum, [steps])))


def test_after_a_restart_the_loop_goes_on_and_no_batch_counts_twice(network):
    host, batch = network.hosts[1], examples(13)
    net, steps = Net(), tf.Variable(0, dtype=tf.int64)
    with AutoDist(network.spec(cpus=[1, 2]), "PS", on_failure="restart", lost_after=600.0) as front:
        step, momentum = counting(front, net, steps)
        buffer = np.empty_like(batch[0])
        for turn in range(12):
            if turn in (4, 8):
                kill(host)
            if turn == 8:
                # The loss is noticed while no step runs: the steps since the last safe state are not lost with it.
                until(lambda: front.engine.training.is_lost)
            # The steps since the last safe state run once more, on the values that the buffer had.
            buffer[...] = batch[0]
            step(buffer, batch[1])
            buffer[...] = np.nan
        assert int(steps) == 12
        assert_same(on_one_device(12), flat(values(net.variables, momentum, [steps])))


def stepping(net: Net, count: tf.Variable) -> Any:
    """A step of one replica whose loss is its part of the sum over 16 examples; `count` counts the steps."""

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net.losses(x, y)) / 16
            counted = -tf.reduce_sum(tf.zeros_like(x[:, 0]) + count) / 16
            both = loss + counted
        *gradients, of_count = tape.gradient(both, [*net.variables, count])
        net.descend(gradients)
        count.assign_sub(of_count)
        return loss

    return step


def same_as_one_device(net: Net, count: tf.Variable) -> int:
    alone, other = Net(), tf.Variable(0.0, dtype=tf.float64)
    step, steps = tf.function(stepping(alone, other)), int(count)
    for _ in range(steps):
        step(*examples(16))
    assert_same(flat(values(alone.variables, [other])), flat(values(net.variables, [count])))
    return steps


@pytest.mark.parametrize("strategy", ["PS", "AllReduce"])
def test_run_over_uneven_hosts_after_a_lost_host_and_after_ctrl_c(network, strategy: str, caplog):
    host, turns = network.hosts[1], []
    net, count = Net(), tf.Variable(0.0, dtype=tf.float64)
    step, safe = stepping(net, count), re.compile(r"after training step [1-9]\d* is safe")
    own = distribute(network.spec(cpus=[1, 2]), strategy, lost_after=600.0)

    def batches_of_16(number: int) -> Any:
        return own.experimental_distribute_dataset(tf.data.Dataset.from_tensors(examples(16)).repeat(number))

    @tf.function
    def epoch(dataset):
        total = tf.constant(0.0, tf.float64)
        for batch in dataset:
            total += own.reduce("SUM", own.run(step, args=batch), axis=None)
        return total

    def when(holds: Any, act: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: (until(holds), act()), daemon=True)
        thread.start()
        return thread

    try:
        epoch(batches_of_16(3))
        assert same_as_one_device(net, count) == 3
        with caplog.at_level(logging.DEBUG, logger="autodist"):
            killing = when(
                lambda: safe.search(caplog.text), lambda: [os.kill(pid, signal.SIGKILL) for pid in agents(host)]
            )
            with pytest.raises(NodeLostError, match=rf"(?s){host.address} was lost during training step \d+") as raised:
                epoch(batches_of_16(1_000_000))
            killing.join()
        assert raised.value.host == host.address
        kept = same_as_one_device(net, count)
        assert f"after training step {kept}" in str(raised.value)
        until(lambda: not agents(host))
        epoch(batches_of_16(2))  # on new agents
        assert same_as_one_device(net, count) == kept + 2

        stopping = when(lambda: len(turns) > 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            for batch in batches_of_16(1_000_000):
                own.run(step, args=batch)
                turns.append(batch)
        stopping.join()
        done = same_as_one_device(net, count)
        assert kept + 2 + len(turns) <= done <= kept + 3 + len(turns)
        epoch(batches_of_16(2))
        assert same_as_one_device(net, count) == done + 2
    finally:
        own.autodist.close()
