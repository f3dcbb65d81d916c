"""Two trainings at the same time on the same hosts: neither takes notice of the other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_core.cluster.chief.cluster import Cluster
from tests.cluster.leftovers import assert_nothing_came, running
from tests.cluster.over_hosts import OverHosts
from tests.support.compare import assert_equally_trained
from tests.support.models import DENSE
from tests.support.training import plain

pytestmark = pytest.mark.usefixtures("float64")

RUNS = (("adam", "AllReduce"), ("momentum", "PS"))


class InStep(keras.callbacks.Callback):
    """After each batch waits for the other training, so that each step of one falls among those of the other."""

    def __init__(self, together: threading.Barrier) -> None:
        super().__init__()
        self.together = together

    def on_train_batch_end(self, batch, logs=None):
        self.together.wait()


def refused(target, job):
    """What a server says to a graph for the devices of a job."""
    with tf.Graph().as_default(), tf.compat.v1.Session(target) as session:
        with tf.device(f"/job:{job}/task:0/cpu:0"):
            one = tf.constant(1.0)
        try:
            return session.run(one) != 1
        except tf.errors.InvalidArgumentError as error:
            return str(error)


def test_two_trainings_on_the_same_hosts_and_ports(network, known_hosts, monkeypatch):
    monkeypatch.setenv("AUTODIST_PORTS", "24000-24003")
    before, together = running(network), threading.Barrier(2, timeout=60)
    spec = network.pair()
    with OverHosts(DENSE, spec) as one, OverHosts(DENSE, spec) as other, ThreadPoolExecutor(2) as threads:
        trainings = [
            threads.submit(hosts.train, *run, callbacks=[InStep(together)])
            for hosts, run in zip((one, other), RUNS, strict=True)
        ]
        for training, (optimizer, _) in zip(trainings, RUNS, strict=True):
            assert_equally_trained(plain(DENSE, optimizer=optimizer), training.result())
    assert_nothing_came(before, network)


def test_a_server_takes_no_graph_for_another_cluster_on_the_same_hosts(network, known_hosts):
    spec = ResourceSpec(network.pair())
    with ThreadPoolExecutor(2) as threads:
        own, others = threads.map(Cluster.start, (spec, spec))
    try:
        assert own.job != others.job and own.target != others.target
        assert not refused(own.target, own.job) and not refused(others.target, others.job)
        assert f"/job:{own.job}/task:0" in refused(others.target, own.job)
        assert f"/job:{others.job}/task:0" in refused(own.target, others.job)
    finally:
        own.close()
        others.close()
