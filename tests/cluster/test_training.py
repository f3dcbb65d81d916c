"""Training over real hosts equals plain Keras, by every builder and over uneven ones."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from autodist_core.auto import Auto
from autodist_core.kernel import packing
from autodist_core.kernel.passes import compile as compiling
from autodist_core.runtime import transfers
from autodist_core.strategy import PS
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import OverHosts
from tests.support.compare import assert_equally_trained
from tests.support.models import BY_NAME, DENSE, stacked
from tests.support.once import once
from tests.support.strategies import BUILDERS, strategy_named
from tests.support.training import compiled, everything, plain, run, train_distributed, train_plain

pytestmark = pytest.mark.usefixtures("float64", "known_hosts", "nothing_stays")
HOSTS = 2


def test_every_builder_over_two_uneven_hosts_by_small_messages(network, monkeypatch):
    """Large variables travel by their rows, and several small ones in a message."""
    monkeypatch.setattr(transfers, "PIECE_BYTES", 300)
    monkeypatch.setattr(packing, "ALONE_BYTES", 16)
    spec = network.spec(cpus=[1, 3])
    with OverHosts(DENSE, spec) as hosts:
        for builder in [*BUILDERS, "Mixed", "Alternating"]:
            actual = hosts.train("adam", builder)
            assert_equally_trained(plain(DENSE, replicas=4), actual)


def test_a_strategy_is_tried_on_the_machines_before_the_training_begins(network):
    with OverHosts(DENSE, network.spec(cpus=[1, 1])) as hosts:
        assert_equally_trained(plain(DENSE), hosts.train("adam", Auto(trials=2)))
        plan = hosts.front.plan(DENSE.data().x, DENSE.data().y)
        assert "auto: measured: a step of one replica" in plan
        assert "auto tried strategies on the first batch: " in plan


@pytest.mark.quick("embedding")
@pytest.mark.parametrize("name", ["embedding", "lstm", "heads"])
def test_replicas_that_xla_compiles_train_over_two_hosts(network, monkeypatch, name):
    """Each replica's compute is many pieces: one for each gradient."""
    monkeypatch.setattr(compiling, "BUCKET_BYTES", 1)
    reference = BY_NAME[name].compiled_with(lambda: {"jit_compile": True})
    with OverHosts(reference, network.spec(cpus=[1, 2])) as hosts:
        for builder in ("Parallax", "AllReduce"):
            assert_equally_trained(plain(reference, replicas=3), hosts.train("adam", builder))


def test_the_same_program_on_one_device_on_two_replicas_and_over_two_hosts(network):
    expected = train_plain(DENSE, everything)
    assert_equally_trained(expected, train_distributed(DENSE, everything, strategy="PS", share_memory=None))
    with OverHosts(DENSE, network.spec()) as hosts:
        hosts.compile("adam", "PS")
        assert_equally_trained(expected, run(everything, hosts.front, hosts.model))


def _wide() -> keras.Model:
    """Kernels of 5.6 and 2 MB, which come home in parts."""
    layers = [keras.layers.Dense(512, activation="tanh"), keras.layers.Dense(500), keras.layers.Dense(1)]
    return stacked(keras.Input((1373,)), *layers, optimizer=keras.optimizers.SGD(0.01, momentum=0.9))


def _wide_steps(front, model):
    """Single steps, with a change between two of them."""
    rng, losses = np.random.default_rng(4), []
    for _ in range(3):
        x = rng.normal(size=(8, 1373))
        losses.append(front.train_on_batch(x, x[:, :1]))
        model.layers[0].kernel.assign(model.layers[0].kernel * 0.75)
    return losses


@pytest.mark.quick("UnevenPartitionedPS")
@pytest.mark.parametrize("builder", ["UnevenPartitionedPS", "PSLoadBalancing", "AllReduce", "Gathered"])
def test_large_variables_come_home_from_two_hosts(network, builder):
    """The chief has copies of the weights. Half of the optimizer's state is on the other host, or all is here.

    The two replicas of a host multiply their rows of the first layer at once.
    """
    expected = once(train_plain, _wide, _wide_steps)
    model = compiled(_wide)
    with DistributedModel(model, network.spec(cpus=[1, 2]), strategy_named(builder)) as front:
        assert_equally_trained(expected, run(_wide_steps, front, model))


@pytest.mark.quick("asynchronous")
@pytest.mark.parametrize("builder", [PS(staleness=2), PS(sync=False)], ids=["staleness", "asynchronous"])
def test_bounded_staleness_and_asynchrony_train_over_hosts(network, builder: PS):
    with OverHosts(DENSE, network.spec(cpus=[1, 2])) as hosts:
        losses = hosts.train("sgd", builder, epochs=6).result["loss"]
        assert losses[-1] < 0.9 * losses[0]


def test_hosts_are_reached_over_ipv6_by_small_messages(network, monkeypatch):
    """The kernel of the first layer has more bytes than a message may have, and travels by its rows."""
    monkeypatch.setattr(transfers, "PIECE_BYTES", 300)
    assert max(weight.numpy().nbytes for weight in DENSE.build().weights) > 300
    spec = network.spec()
    for node, host in zip(spec["nodes"], network.hosts, strict=False):
        node["address"] = host.address6
    with OverHosts(DENSE, spec) as hosts:
        assert_equally_trained(plain(DENSE), hosts.train("adam", "AllReduce"))


NORMALIZES = """
import json, sys
import keras, numpy as np
from autodist_keras import DistributedModel
from tests.support.compare import assert_same

x, y = np.random.default_rng(0).normal(size=(8, 6, 6, 3)).astype("float32"), np.ones((8, 1))
ends = []
for spec in (None, json.loads(sys.stdin.read())):
    keras.utils.set_random_seed(1)
    normed = [
        layer for _ in range(2)
        for layer in (keras.layers.Conv2D(4, 3, use_bias=False), keras.layers.BatchNormalization(), keras.layers.ReLU())
    ]
    after = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6, 6, 3)), *normed, *after])
    model.compile("sgd", "mse", jit_compile=False)
    # Both halves of a batch are equal, and so are their statistics.
    (model if spec is None else DistributedModel(model, spec)).fit(
        np.concatenate([x, x]), np.concatenate([y, y]), batch_size=16, shuffle=False, verbose=0
    )
    ends.append({weight.path: weight.numpy() for weight in model.weights})
assert_same(*({str(at): value for at, value in enumerate(end.values())} for end in ends), tolerance=1e-5)
"""


def test_other_hosts_use_onednn_where_the_program_does(network):
    """The session fuses operations as the program's host can compute them; here they do not choose oneDNN alike."""
    done = subprocess.run(
        [sys.executable, "-c", NORMALIZES], input=json.dumps(network.pair()), capture_output=True,
        text=True, timeout=120, env=os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
