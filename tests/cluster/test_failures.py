"""What is lost and what is kept when a node goes in the middle of an epoch: real kills, stops and cuts."""

import gc
import multiprocessing
import os
import re
import threading
import time
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client.session import BaseSession

from autodist_core.cluster.chief import fleet
from autodist_core.errors import NodeLostError, SessionError
from autodist_core.runtime.recovery import on_disk
from autodist_core.strategy import PS, AllReduce
from autodist_keras import DistributedModel
from tests.cluster.hurting import agents, cut, kill, loss_is_noticed, starve, stop
from tests.cluster.over_hosts import OverHosts
from tests.support.compare import assert_same, named
from tests.support.layers import Does
from tests.support.models import DENSE, dense_data, ready, stacked
from tests.support.training import compiled, seeded, trained
from tests.support.waiting import HANGS, until

pytestmark = pytest.mark.usefixtures("float64", "known_hosts", "nothing_stays")

LOST_AFTER = 3.0
DATA = dense_data(400)
BATCH = 10
PER_EPOCH = 40
FACTORS, RING = AllReduce(factor_rows=BATCH), AllReduce(all_reduce_spec="RING")


class Hurt(keras.callbacks.Callback):
    """Does something to a host after some batches of the second epoch, once for each time given."""

    def __init__(self, how, host, *after: int) -> None:
        super().__init__()
        self.how, self.host, self.after = how, host, list(after)
        self.steps = 0
        self.at = 0.0
        self.ends: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.ends.append(time.monotonic())
        time.sleep(0.02)
        if self.after and self.steps == PER_EPOCH + self.after[0]:
            self.after.pop(0)
            self.at = time.monotonic()
            self.how(self.host)


def fit(front, epochs=3, callbacks=()):
    return front.fit(
        DATA.x, DATA.y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    ).history


def after_steps(steps: int) -> dict:
    """The state of one device after so many steps."""
    model = compiled(DENSE)
    model.optimizer.build(model.trainable_variables)
    for step in range(steps):
        rows = slice(step % PER_EPOCH * BATCH, (step % PER_EPOCH + 1) * BATCH)
        model.train_on_batch(DATA.x[rows], DATA.y[rows])
    return trained(model).state


def on_one_device(epochs=3):
    model = compiled(DENSE)
    history = fit(model, epochs)
    return {**{f"history {name}": np.asarray(values) for name, values in history.items()}, **named(model.weights)}


@pytest.mark.quick("killed")
@pytest.mark.parametrize(
    "how, strategy, lost_after, backup_every",
    [
        (kill, PS(), 600.0, None), (kill, FACTORS, 600.0, None), (stop, AllReduce(), LOST_AFTER, None),
        (cut, PS(), LOST_AFTER, 0.3), (kill, AllReduce(), 600.0, 0),
    ],
    ids=["killed", "killed, factors travel", "stopped", "cut off", "killed, nothing may be lost"],
)
def test_a_lost_node_ends_the_fit_and_what_was_trained_is_kept(network, how, strategy, lost_after, backup_every):
    """A killed agent is missed at once, a silent one after the seconds that the error names, and nothing delays it."""
    host = network.hosts[2]
    threads = threading.active_count()
    with OverHosts(DENSE, network.spec(), lost_after=lost_after, backup_every=backup_every) as hosts:
        hosts.compile("adam", strategy)
        hurt = Hurt(how, host, 15)
        words = rf"(?s){host.address} was lost during training step \d+: .*holds"
        with pytest.raises(NodeLostError, match=words) as caught:
            fit(hosts.front, callbacks=[hurt])
        assert time.monotonic() - hurt.at < min(lost_after + 1.5, HANGS)
        assert caught.value.host == host.address
        until(lambda: not agents(network.hosts[1]))
        kept = int(hosts.model.optimizer.iterations.numpy())
        assert f"after training step {kept}" in str(caught.value) and 0 < kept <= hurt.steps
        assert backup_every is None or hurt.at - hurt.ends[kept - 1] <= backup_every + max(np.diff(hurt.ends))
        assert_same(after_steps(kept), trained(hosts.model).state)
        host.mend()
        fit(hosts.front, epochs=1)
        assert int(hosts.model.optimizer.iterations.numpy()) == kept + PER_EPOCH
    assert threading.active_count() <= threads + 2


def test_after_a_restart_that_was_given_up_the_next_fit_works(network, monkeypatch):
    monkeypatch.setattr(fleet, "RESTART_SECONDS", 1.0)
    monkeypatch.setenv("AUTODIST_DEADLINES", "connect=2")
    host = network.hosts[2]
    with OverHosts(DENSE, network.spec(), on_failure="restart", lost_after=LOST_AFTER) as hosts:
        hosts.compile("adam", PS())
        with pytest.raises(NodeLostError, match="It was not started again"):
            fit(hosts.front, callbacks=[Hurt(cut, host, 15)])
        monkeypatch.delenv("AUTODIST_DEADLINES")
        host.mend()
        kept = int(hosts.model.optimizer.iterations.numpy())
        fit(hosts.front, epochs=1)
        assert int(hosts.model.optimizer.iterations.numpy()) == kept + PER_EPOCH


@pytest.mark.parametrize(
    "on_failure, builder", [("restart", "PS"), ("shrink", "AllReduce"), ("restart", FACTORS), ("shrink", FACTORS)]
)
def test_training_goes_on_and_counts_no_sample_twice(network, on_failure, builder):
    host = network.hosts[1]
    with OverHosts(DENSE, network.spec(), on_failure=on_failure, lost_after=LOST_AFTER) as hosts:
        hosts.compile("adam", builder)
        hurt = Hurt(kill, host, 7, 31)
        history = fit(hosts.front, callbacks=[hurt])
        actual = {f"history {name}": np.asarray(v) for name, v in history.items()} | named(hosts.model.weights)
        assert_same(on_one_device(), actual)
        assert hurt.steps == 3 * PER_EPOCH
        left = [node.address for node in hosts.front.resource_spec.nodes]
        everyone = [each.address for each in network.hosts]
        assert left == (everyone if on_failure == "restart" else [a for a in everyone if a != host.address])


class LookAtAll(keras.callbacks.Callback):
    """Looks at every variable at the end of each epoch, as callbacks that save do."""

    def on_epoch_end(self, epoch, logs=None):
        for variable in [*self.model.variables, *self.model.optimizer.variables]:
            variable.numpy()


def test_what_a_call_returned_with_is_never_lost(network):
    with OverHosts(DENSE, network.pair(), lost_after=LOST_AFTER) as hosts:
        hosts.compile("adam", "PS")
        fit(hosts.front, epochs=1, callbacks=[LookAtAll()])
        kill(network.hosts[1])
        until(loss_is_noticed)
        fit(hosts.front, epochs=1)
        assert int(hosts.model.optimizer.iterations.numpy()) == 2 * PER_EPOCH
        assert_same(after_steps(2 * PER_EPOCH), trained(hosts.model).state)
        kill(network.hosts[1])
        until(loss_is_noticed)
        hosts.front.close()
        assert int(hosts.model.optimizer.iterations.numpy()) == 2 * PER_EPOCH


def frozen_and_trained():
    """Half a megabyte that is never trained, and a few numbers that are."""
    inputs = keras.Input((256,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(256, trainable=False, name="frozen")(inputs)))
    return ready(model, keras.optimizers.Adam(name="adam"), "mse")


@pytest.mark.quick("PartitionedPS")
@pytest.mark.parametrize("strategy", ["AllReduce", "PartitionedPS"])
def test_single_steps_send_only_what_was_changed_and_lose_nothing_between_them(network, strategy):
    """The kernel that is never trained goes to the other host where it was changed, and nowhere else."""
    x, y = np.random.default_rng(0).normal(size=(12, 256)), np.ones((12, 1))
    alone, model = seeded(frozen_and_trained), seeded(frozen_and_trained)
    size = model.get_layer("frozen").kernel.numpy().nbytes
    with DistributedModel(model, network.pair(), strategy) as front:

        def bytes_of_three_steps() -> int:
            before = network.hosts[0].sent_bytes()
            for _ in range(3):
                alone.train_on_batch(x, y)
                front.train_on_batch(x, y)
            assert_same(trained(alone).state, trained(model).state)
            return network.hosts[0].sent_bytes() - before

        assert bytes_of_three_steps() > size
        assert bytes_of_three_steps() < size
        for each in (alone, model):
            each.get_layer("frozen").kernel.assign(each.get_layer("frozen").kernel * 1.5)
        assert size < bytes_of_three_steps() < 2 * size
        kill(network.hosts[1])
        until(loss_is_noticed)
        assert bytes_of_three_steps() > size


@pytest.mark.quick("machines")
@pytest.mark.parametrize("place", [None, "machines"])
def test_a_node_that_is_lost_between_calls_is_named_with_what_is_kept(network, monkeypatch, place):
    """In a block, or where large values stay on the machines between calls."""
    monkeypatch.setattr(on_disk, "LARGE_BYTES", 64)
    monkeypatch.setattr(on_disk.OnDisk, "most_in_memory", 0)
    with OverHosts(DENSE, network.pair(), lost_after=LOST_AFTER, keep_state=place, backup_every=600) as hosts:
        hosts.compile("adam", "PartitionedPS")
        block = nullcontext if place else hosts.front.one_call

        def steps(first: int, last: int) -> None:
            for step in range(first, last):
                rows = slice(step * BATCH, (step + 1) * BATCH)
                hosts.front.train_on_batch(DATA.x[rows], DATA.y[rows])

        words = r"(?s)was lost.*holds the state after training step"
        with pytest.raises(NodeLostError, match=words) as caught, block():
            steps(0, 3)
            assert int(hosts.model.optimizer.iterations.numpy()) == 3
            kill(network.hosts[1])
            until(loss_is_noticed)
            steps(3, 4)
        kept = int(hosts.model.optimizer.iterations.numpy())
        assert f"after training step {kept}" in str(caught.value)
        assert_same(after_steps(kept), trained(hosts.model).state)
        with block():
            steps(kept, 5)
        assert_same(after_steps(5), trained(hosts.model).state)


def test_replicas_that_run_ahead_go_on_after_a_loss(network):
    threads = threading.active_count()
    with OverHosts(DENSE, network.spec(), on_failure="restart", lost_after=LOST_AFTER) as hosts:
        hosts.compile("sgd", PS(staleness=2))
        hurt = Hurt(kill, network.hosts[1], 11)
        losses = fit(hosts.front, callbacks=[hurt])["loss"]
        assert int(hosts.model.optimizer.iterations.numpy()) == hurt.steps == 3 * PER_EPOCH
        assert losses[-1] < losses[0]
    assert threading.active_count() <= threads + 2


def test_a_node_without_memory_is_named_and_what_was_trained_is_kept(network):
    host = network.hosts[2]
    with OverHosts(DENSE, network.spec(), lost_after=LOST_AFTER) as hosts:
        hosts.compile("sgd", "AllReduce")
        fit(hosts.front, epochs=1)
        before = named(hosts.model.weights)
        starve(host)
        large = np.resize(DATA.x, (2_000_000, *DATA.x.shape[1:])), np.resize(DATA.y, (2_000_000, *DATA.y.shape[1:]))
        with pytest.raises((NodeLostError, tf.errors.ResourceExhaustedError)) as caught:
            hosts.front.train_on_batch(*large)
        assert host.address in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert_same(before, named(hosts.model.weights))
        hosts.front.close()
        fit(hosts.front, epochs=1)


def choosy():
    """Refuses numbers that are large."""

    def refuses(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(90.0, x.dtype), "too large")]):
            return tf.identity(x)

    layers = [keras.Input((3,)), Does(refuses), keras.layers.Dense(1, name="dense")]
    return stacked(*layers, optimizer=keras.optimizers.Adam(name="adam"))


@pytest.mark.quick("ring", "AllReduce")
@pytest.mark.parametrize(
    ("strategy", "times", "survives"),
    [(RING, 1, False), ("AllReduce", 4, True), ("PS", 8, True)], ids=["ring", "AllReduce", "PS"],
)  # fmt: skip
def test_an_error_of_the_step_on_a_worker_is_the_users_and_ends_nothing_else(network, strategy, times, survives):
    x, y = np.random.default_rng(0).normal(size=(12, 3)), np.ones((12, 1))
    bad = np.array(x)
    bad[-1] = 99  # on the last host's slice
    alone = seeded(choosy)
    model = seeded(choosy)
    with DistributedModel(model, network.pair()) as front:
        front.compile(keras.optimizers.Adam(name="adam"), "mse", strategy=strategy)
        for either in (alone, front):
            either.fit(x, y, batch_size=6, verbose=0, shuffle=False)
        servers = agents(network.hosts[1])
        for _ in range(times):
            with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
                front.fit(bad, y, batch_size=12, verbose=0, shuffle=False)
            assert_same(named(alone.weights), named(model.weights))
            for either in (alone, front):
                either.fit(x, y, batch_size=6, verbose=0, shuffle=False)
        assert_same(trained(alone).state, trained(model).state)
        # TensorFlow's collectives over several servers end for good, or wait for ever, once a step of theirs failed.
        assert (agents(network.hosts[1]) == servers) == survives


def test_a_silent_host_is_awaited_by_name_before_it_is_lost(network, caplog):
    """The cut is mended after the host was named, and the training ends as it would have."""
    host = network.hosts[1]
    with OverHosts(DENSE, network.pair()) as hosts:
        expected = hosts.train("sgd", "PS", DATA, batch_size=BATCH, epochs=1)
        cut = []

        def cut_once(batch, logs):
            if batch == 3 and not cut:
                cut.append(threading.Thread(target=mend_when_named, daemon=True))
                host.cut()
                cut[0].start()

        def mend_when_named():
            try:
                until(lambda: "to answer: " in caplog.text)
            finally:
                host.mend()

        look = keras.callbacks.LambdaCallback(on_train_batch_end=cut_once)
        found = hosts.train("sgd", "PS", DATA, batch_size=BATCH, epochs=1, callbacks=[look])
        cut[0].join()
    assert_same(expected.everything, found.everything)
    (said,) = {line for line in caplog.messages if "to answer: " in line}
    assert re.fullmatch(rf"waiting for 1 of 2 machines to answer: {host.address} \([56] s of 60\)", said)


def test_a_forked_process_leaves_the_machines_to_the_program(network):
    """When it ends, Python deletes there what TensorFlow has of the session."""
    with OverHosts(DENSE, network.pair()) as hosts:
        hosts.compile("adam", "PS")
        fit(hosts.front, epochs=1)

        def in_child():
            with pytest.raises(SessionError, match=rf"was forked from {os.getppid()}, which trains over machines"):
                fit(hosts.front, epochs=1)
            hosts.front.close()
            [each.__del__() for each in gc.get_objects() if type(each) is BaseSession._Callable]

        child = multiprocessing.get_context("fork").Process(target=in_child, daemon=True)
        child.start()
        child.join(HANGS)
        child.kill()
        assert child.exitcode == 0
        fit(hosts.front, epochs=1)
        assert int(hosts.model.optimizer.iterations.numpy()) == 2 * PER_EPOCH


def test_the_compressors_go_on_after_a_node_was_left_out(network, caplog):
    """What they keep is the strategy's without the node; a session that is opened later takes it up."""
    with OverHosts(DENSE, network.spec(), on_failure="shrink", lost_after=LOST_AFTER) as hosts:
        hosts.compile("sgd", AllReduce(compressor="HorovodCompressorEF"))
        fit(hosts.front, epochs=2, callbacks=[Hurt(kill, network.hosts[1], 7)])
        kept = hosts.front.compressor_state()
        hosts.front.close()
        fit(hosts.front, epochs=1)
        assert kept.values
        assert hosts.front.compressor_state().strategy == kept.strategy
        assert "start anew" not in caplog.text
    said = [line.partition(";")[0] for line in caplog.messages if " per step = " in line]
    assert said == ["10 per step = 1 x 4 + 2 x 3 on 3 machines", *["10 per step = 2 x 5 on 2 machines"] * 2]
