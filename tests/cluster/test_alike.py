"""Over many machines a step is made of functions that the replicas share: training equals plain Keras."""

import logging
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.strategy import AllReduce
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import OverHosts
from tests.equality.test_rows import MODELS
from tests.support.compare import assert_equally_trained
from tests.support.models import BY_NAME, DENSE, dense_data, stacked
from tests.support.strategies import BUILDERS
from tests.support.training import everything, plain, run, train_plain

pytestmark = [pytest.mark.usefixtures("float64", "known_hosts"), pytest.mark.long]
HOSTS = 6


CASES = {
    "dense": tuple(BUILDERS), "convolution": ("AllReduce", "PSLoadBalancing", "PartitionedPS"),
    "lstm": ("AllReduce", "Mixed"),
    "embedding": ("AllReduce", "PS", "Parallax", "PartitionedPS", "PartitionedAR"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_builder_over_many_hosts(network, name, caplog, monkeypatch):
    """Batches are uneven: some replicas have an example more, and in the last batch some may have none."""
    monkeypatch.setattr(packing, "ALONE_BYTES", 16)
    caplog.set_level(logging.DEBUG, "autodist")
    reference = BY_NAME[name]
    expected = plain(reference, replicas=HOSTS)
    with OverHosts(reference, network.spec()) as hosts:
        for builder in CASES[name]:
            assert_equally_trained(expected, hosts.train("adam", builder))
    assert not [text for text in caplog.messages if text.startswith("The graph of each replica is built")]


@pytest.mark.parametrize(("cpus", "share_memory"), [(2, None), (4, False)])
def test_several_replicas_on_each_machine(network, cpus, share_memory, caplog, monkeypatch):
    """The replicas of a machine share copies, as on CPUs, or have their own, as on GPUs."""
    monkeypatch.setattr(packing, "ALONE_BYTES", 16)
    caplog.set_level(logging.DEBUG, "autodist")
    for name, builders in {"dense": ("AllReduce", "PSLoadBalancing"), "embedding": ("AllReduce", "Parallax")}.items():
        reference = BY_NAME[name]
        data = reference.data(5 * 24)
        expected = train_plain(reference, data=data, batch_size=48)
        with OverHosts(reference, network.spec(cpus=cpus), share_memory=share_memory) as hosts:
            for builder in builders:
                assert_equally_trained(expected, hosts.train("adam", builder, data, batch_size=48))
    assert not [text for text in caplog.messages if text.startswith("The graph of each replica is built")]


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_rows_that_all_machines_gather(network, name):
    """How many rows a machine has changes from step to step, and is none for a machine without examples."""
    reference = MODELS[name]
    expected = train_plain(reference)
    for cpus, builder in (([2, 1, 1], "AllReduce"), ([1] * HOSTS, "PartitionedAR")):
        with OverHosts(reference, network.spec(cpus, network.hosts[: len(cpus)])) as hosts:
            assert_equally_trained(expected, hosts.train("adam", builder))


def test_an_update_that_is_left_out(network, caplog):
    """One label is not a number. So the update of its batch is left out, on every machine."""
    caplog.set_level(logging.DEBUG, "autodist")
    data = dense_data()
    labels = data.y.copy()
    labels[13] = np.nan

    def training(front, model):
        front.fit(data.x, labels, epochs=2, batch_size=12, shuffle=False, verbose=0)

    def plain_training(front, model):
        front.compile(_scaled(), "mse")
        training(front, model)

    expected = train_plain(DENSE, plain_training)
    assert all(np.isfinite(value).all() for value in expected.state.values())
    with OverHosts(DENSE, network.spec()) as hosts:
        for builder in ("AllReduce", "PS"):
            hosts.compile("adam", builder)
            hosts.front.compile(_scaled(), "mse", strategy=builder)
            assert_equally_trained(expected, run(training, hosts.front, hosts.model))
    assert not [text for text in caplog.messages if text.startswith("The graph of each replica is built")]


def _scaled() -> keras.optimizers.Optimizer:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, name="inner"), 64.0, name="scaled")


def test_the_same_without_tensorflows_graph_optimizer(network):
    """TensorFlow then puts functions in place of their calls later. So do evaluations and predictions go."""
    expected = train_plain(DENSE, everything)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        with OverHosts(DENSE, network.spec()) as hosts:
            hosts.compile("adam", AllReduce(compressor="NoneCompressor", bucket_bytes=64))
            assert_equally_trained(expected, run(everything, hosts.front, hosts.model))
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def test_an_error_names_the_replica_and_its_examples(network):
    """The operation that fails is in a function of replicas 1 to 5."""
    table = np.ones((5, 2))
    look_up = keras.layers.Lambda(lambda rows: keras.ops.take(table, rows, axis=0), output_shape=(2,))
    model = stacked(keras.Input((), dtype="int32"), look_up, keras.layers.Dense(1))
    x = np.zeros(12, "int32")
    x[9] = 7
    device = f"{network.hosts[4].address}:CPU:0"
    failed = f"This happened on {device}, during training step 1 with examples 8 to 9 of the batch."
    with (
        DistributedModel(model, network.spec(), "AllReduce") as front,
        pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(failed)),
    ):
        front.fit(x, np.zeros((12, 1)), batch_size=12, shuffle=False, verbose=0)
