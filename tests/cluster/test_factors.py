"""Where factors of gradients travel between machines, training equals plain Keras."""

import keras
import numpy as np
import pytest

from autodist_core.auto import Auto
from autodist_core.kernel import packing
from autodist_core.strategy import AllReduce, Parallax, Sharded
from tests.cluster.over_hosts import OverHosts
from tests.support.compare import assert_equally_trained
from tests.support.models import BY_NAME, Data, ReferenceModel
from tests.support.strategies import UnevenShards
from tests.support.training import run, train_plain

pytestmark = pytest.mark.usefixtures("float64", "known_hosts")
HOSTS = 4
SENDING = AllReduce(factor_rows=1000)
COMPRESSING = AllReduce(compressor="PowerSGDCompressor", factor_rows=1000)
"""It would compress each kernel and no bias."""
BUILDERS = (SENDING, "adam"), (COMPRESSING, "sgd"), (AllReduce(factor_rows=6), "adam"), (Parallax(factor_rows=7), "sgd")
OF_SHARDS = [
    (UnevenShards(factor_rows=1000), "adam"), (Sharded(weights=1, factor_rows=1000), "sgd"),
    (Sharded(weights="gathered", whole_bytes=0, factor_rows=6), "adam"),
]  # fmt: skip


def _branches() -> keras.Model:
    """Two layers have one input, and one layer is on one branch only."""
    inputs = keras.Input((9,))
    hidden = keras.layers.Dense(8, "relu")(inputs)
    left, right = keras.layers.Dense(6, "tanh")(hidden), keras.layers.Dense(6)(hidden)
    joined = keras.layers.Concatenate()([keras.layers.Multiply()([left, right]), keras.layers.Dense(4)(inputs)])
    return keras.Model(inputs, keras.layers.Dense(2, use_bias=False)(joined))


def _data() -> Data:
    random = np.random.default_rng(3)
    x, y = random.normal(size=(43, 9)), random.normal(size=(43, 2))
    return Data(x, y, random.uniform(0.5, 2.0, size=43))


def _positions() -> keras.Model:
    """A layer over the positions of sequences, and layers behind it over whole sequences."""
    return keras.Sequential([
        keras.Input((3, 3)), keras.layers.Dense(4, "tanh"), keras.layers.Flatten(), keras.layers.Dense(6, "relu"),
        keras.layers.Dense(2),
    ])  # fmt: skip


def _sequences() -> Data:
    data = _data()
    return Data(data.x.reshape(-1, 3, 3), data.y, data.sample_weight)


BRANCHES = ReferenceModel("branches", _branches, _data, lambda: {"loss": "mse", "metrics": ["mae"]})

POSITIONS = ReferenceModel("positions", _positions, _sequences, lambda: {"loss": "mse", "metrics": ["mae"]})


@pytest.mark.parametrize(
    "reference, cpus, builders",
    [
        (BRANCHES, [1, 1], (OF_SHARDS[0], (Auto(), "adam"))),
        pytest.param(BRANCHES, [1, 1], BUILDERS, marks=pytest.mark.long),
        *(
            pytest.param(each, [2, 2, 1, 1], (*BUILDERS, *OF_SHARDS), marks=pytest.mark.long)
            for each in (BRANCHES, POSITIONS, BY_NAME["dense"])
        ),
    ],
    ids=str,
)  # fmt: skip
def test_training_equals_one_device(network, monkeypatch, reference, cpus, builders):
    """Batches are uneven, in the last one some machines have no example, and each adds up some of a gradient."""
    monkeypatch.setattr(packing, "ALONE_BYTES", 16)
    expected = {name: train_plain(reference, batch_size=7, optimizer=name) for name in ("adam", "sgd")}
    with OverHosts(reference, network.spec(cpus, network.hosts[: len(cpus)])) as hosts:
        for builder, optimizer in builders:
            assert_equally_trained(expected[optimizer], hosts.train(optimizer, builder, batch_size=7))


def test_each_size_of_a_batch_takes_its_way(network):
    """Factors travel, then gradients, with factors in the smaller last batch, then factors. The numbers are exact."""

    def training(front, model):
        data = _data()
        for size in (6, 30, 5):
            front.fit(data.x, data.y, batch_size=size, epochs=2, shuffle=False, verbose=0)

    expected = train_plain(BRANCHES, training)
    with OverHosts(BRANCHES, network.spec([1, 1], network.hosts[:2])) as hosts:
        for builder in (AllReduce(factor_rows=20, bucket_bytes=64), Sharded(whole_bytes=0, factor_rows=20)):
            hosts.compile("adam", builder)
            assert_equally_trained(expected, run(training, hosts.front, hosts.model))
