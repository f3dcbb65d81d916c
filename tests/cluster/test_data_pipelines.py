"""Datasets that can run anywhere run on each machine, which takes its rows of each batch."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import AllReduce
from autodist_keras import DistributedModel
from autodist_keras.training import kept_data
from tests.cluster.over_hosts import OverHosts, nothing_left
from tests.conftest import OF_KERAS
from tests.support.compare import assert_equally_trained
from tests.support.models import DENSE, dense_data
from tests.support.training import SEED, run, seeded, train_plain

pytestmark = [
    pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(OF_KERAS), pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]  # fmt: skip
ON_MACHINES = "each machine runs its tf.data pipeline"
FED = "fed each step"


@pytest.fixture(autouse=True)
def known_hosts(network, monkeypatch):
    monkeypatch.setenv("HOME", str(network.home))


def rows(weights=False):
    data = dense_data()
    return tf.data.Dataset.from_tensor_slices((data.x, data.y, *([np.linspace(0.5, 2.0, 22)] if weights else [])))


def scaled(x, *rest):
    return (x * 1.5 - 0.1, *rest)


def untuned(dataset):
    """The dataset, tuned on no machine: so the tests leave every iterator of this process (`tests/conftest.py`)."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def classes(x, y):
    return x, tf.abs(tf.sign(y))


def datasets():
    """Datasets of 22 examples, and the options of their `fit`. Batches are uneven, and the last one is smaller."""
    auto = tf.data.AUTOTUNE
    batches = rows().shuffle(10, seed=3).map(scaled, num_parallel_calls=auto).batch(7)
    return {
        "shuffled": (batches.prefetch(auto), {"epochs": 2}),
        "cached": (rows().cache().shuffle(22).map(scaled).batch(5, num_parallel_calls=2), {"epochs": 3}),
        "repeated": (rows().shuffle(9).repeat().batch(7), {"epochs": 3, "steps_per_epoch": 4}),
        "validated": (
            batches, {"epochs": 3, "validation_freq": 2,
             "validation_data": untuned(rows().shuffle(22).batch(8).prefetch(1))}
        ),
        "unknown": (rows(True).filter(lambda x, y, w: w > 0.7).batch(4), {"epochs": 2}),
        "classes": (batches.map(classes).take(2), {"epochs": 2, "class_weight": {0: 1.0, 1: 2.0}}),
        "idle": (rows().batch(3).map(lambda x, y: (x[:1], y[:1])).concatenate(batches), {"epochs": 2}),
    }


def everything(front, model):
    results = {}
    for name in datasets():
        keras.utils.set_random_seed(SEED)
        dataset, options = datasets()[name]
        if front is model and name == "unknown":
            # Keras on one device counts an iteration more where data end unexpectedly.
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(5))
        results[name] = front.fit(untuned(dataset), verbose=0, shuffle=False, **options).history
        if front is not model:
            assert ON_MACHINES in str(front.plan()), name
    return results


def test_datasets_train_as_on_one_device(network):
    """A strategy that splits variables, and one with a server, on two hosts of which one has two replicas."""
    expected = train_plain(DENSE, everything)
    with OverHosts(DENSE, network.spec(cpus=[1, 2], hosts=network.hosts[:2])) as hosts:
        for builder in ("PartitionedAR", "PS"):
            hosts.compile("adam", builder)
            assert_equally_trained(expected, run(everything, hosts.front, hosts.model))
    assert nothing_left(network) == []


def images(count=600):
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 500)), rng.normal(size=(count, 1))


def small():
    model = keras.Sequential([keras.Input((500,)), keras.layers.Dense(1, name="dense")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def made(number):
    """An image that a function of TensorFlow makes: 4000 bytes of 8."""
    x = tf.random.stateless_normal((500,), tf.stack([number, 7]), dtype=tf.float64)
    return x, tf.reduce_sum(x, keepdims=True)


def sent_by_fit(network, front, dataset, **options):
    """The bytes that the chief has sent to other hosts during a fit, and the losses."""
    before = network.hosts[0].sent_bytes()
    losses = front.fit(untuned(dataset), verbose=0, shuffle=False, **options).history["loss"]
    return network.hosts[0].sent_bytes() - before, losses


def test_the_chief_sends_little(network, monkeypatch):
    """Shuffles without a seed are alike everywhere: without learning, each epoch has the loss of all examples."""
    whole = tf.data.Dataset.range(600).map(made)
    with DistributedModel(seeded(small), network.spec(hosts=network.hosts[:2]), AllReduce()) as front:
        loss = front.model.evaluate(whole.batch(60), verbose=0)
        for dataset in (
            tf.data.Dataset.range(600).shuffle(600).map(made, num_parallel_calls=2).batch(60).prefetch(2),
            tf.data.Dataset.range(600).shuffle(600).map(made).repeat(2).batch(60),
        ):
            monkeypatch.setenv(kept_data.VARIABLE, "0")
            fed, _ = sent_by_fit(network, front, dataset, epochs=4)
            assert f"{FED}: it has" in str(front.plan())
            monkeypatch.delenv(kept_data.VARIABLE)
            sent, losses = sent_by_fit(network, front, dataset, epochs=4)
            assert ON_MACHINES in str(front.plan())
            # The first batch is fed, and compared with what the machine makes.
            assert sent < 0.3 * fed
            np.testing.assert_allclose(losses, loss, rtol=1e-12)
