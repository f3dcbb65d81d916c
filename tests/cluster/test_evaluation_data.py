"""The data of `evaluate`, `predict` and validations takes the ways of that of `fit`."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import PS
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import OverHosts, nothing_left
from tests.cluster.test_data_pipelines import made, rows, scaled, small, untuned
from tests.conftest import OF_KERAS
from tests.support.compare import assert_equally_trained
from tests.support.models import DENSE, dense_data
from tests.support.training import run, seeded, train_plain

pytestmark = [
    pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings(OF_KERAS), pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]  # fmt: skip
ON_MACHINES = "each machine runs its tf.data pipeline"
KEPT = "sent once to each machine"


@pytest.fixture(autouse=True)
def known_hosts(network, monkeypatch):
    monkeypatch.setenv("HOME", str(network.home))


def way_of(front, what):
    """What the plan says of the data of the last call."""
    return next(line for line in str(front.plan()).splitlines() if f"the data of the last {what}: " in line)


def datasets():
    """Datasets of 22 examples, the options with which they are gone through, and whether the batches are foreseen."""
    batches = rows(True).shuffle(10, seed=3).map(scaled, num_parallel_calls=2).batch(7)
    return {
        "last batch": (batches.prefetch(2), {}, False),
        "cut short": (rows(True).repeat().batch(5), {"steps": 3}, False),
        "foreseen": (rows(True).map(scaled).batch(5, drop_remainder=True), {}, True),
        "idle": (rows(True).batch(3).map(lambda x, y, w: (x[:1], y[:1], w[:1])).concatenate(batches), {}, False),
    }


def everything(front, model):
    """Losses, metrics and outputs, of datasets and of arrays, by `steps` and with weights."""
    data, weights, found = dense_data(), np.linspace(0.5, 2.0, 22), {}
    for name, (dataset, options, foreseen) in datasets().items():
        for loop in ("evaluate", "predict"):
            found[f"{loop} {name}"] = getattr(front, loop)(untuned(dataset), verbose=0, **options)
            if front is not model:
                assert ON_MACHINES in way_of(front, loop), name
                assert ("this program runs it too" in way_of(front, loop)) != foreseen, name
    for name, options in {"seven": {"batch_size": 7}, "two steps": {"batch_size": 6, "steps": 2}}.items():
        arrays = {"sample_weight": weights, "verbose": 0, **options}
        found[f"evaluate {name}"] = front.evaluate(data.x, data.y, **arrays)
        found[f"predict {name}"] = front.predict(data.x, verbose=0, **options)
        if front is not model:
            assert "fed each step: the steps of this evaluate send " in way_of(front, "evaluate")
            assert "fed each step: the steps of this predict send " in way_of(front, "predict")
    return found


def repeated(front, model):
    """A callback looks at the same arrays after each epoch: later on, the machines have them."""
    data, seen = dense_data(), []

    def look(epoch, logs):
        if epoch == 3:
            data.y[:] += 0.25
        seen.append(front.evaluate(data.x, data.y, batch_size=7, verbose=0))
        seen.append(front.predict(data.x, batch_size=7, verbose=0).sum())
        if front is not model and epoch > 1:
            assert KEPT in way_of(front, "evaluate") and KEPT in way_of(front, "predict")

    history = front.fit(
        untuned(rows().batch(7)), epochs=5, verbose=0, shuffle=False, validation_data=(data.x[:9], data.y[:9]),
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look)],
    )
    if front is not model:
        assert "the validation data of the last fit: 432 B, sent once to each machine" in str(front.plan())
    return {"seen": seen, **history.history}


def test_evaluate_and_predict_are_those_of_one_device(network):
    """A strategy that splits variables, and one with a server, on two hosts of which one has two replicas."""
    expected = train_plain(DENSE, everything, built=False), train_plain(DENSE, repeated)
    with OverHosts(DENSE, network.spec(cpus=[1, 2], hosts=network.hosts[:2])) as hosts:
        for builder in ("PartitionedAR", "PS"):
            for program, outcome in zip((everything, repeated), expected, strict=True):
                hosts.compile("adam", builder)
                assert_equally_trained(outcome, run(program, hosts.front, hosts.model))
    assert nothing_left(network) == []


def test_the_chief_sends_little(network):
    """A dataset is not fed, arrays that come again are sent once, and replicas need not wait for each other."""
    whole = tf.data.Dataset.range(600).map(made)
    x, y = next(iter(whole.batch(600)))
    x, y = np.array(x), np.array(y)
    with DistributedModel(seeded(small), network.spec(hosts=network.hosts[:2]), PS(staleness=2)) as front:
        loss = front.model.evaluate(x, y, verbose=0)

        def sent_by(call):
            before = network.hosts[0].sent_bytes()
            result = call()
            return (network.hosts[0].sent_bytes() - before) / x.nbytes, result

        front.evaluate(x[:60], y[:60], verbose=0)
        for batches in (whole.batch(60), whole.batch(60, drop_remainder=True)):
            sent, found = sent_by(lambda batches=batches: front.evaluate(untuned(batches), verbose=0))
            assert sent < 0.25
            assert found == pytest.approx(loss, rel=1e-12)
            sent, found = sent_by(lambda batches=batches: front.predict(untuned(batches), verbose=0))
            assert sent < 0.25
            np.testing.assert_allclose(found, front.model.predict(x, verbose=0), rtol=1e-12)

        def often():
            with front.one_call():
                return [front.evaluate(x, y, batch_size=60, verbose=0) for _ in range(8)]

        # Half of the rows twice, and then all rows once.
        sent, found = sent_by(often)
        assert 1.9 < sent < 2.4
        assert found == pytest.approx([loss] * 8, rel=1e-12)
        front.evaluate(x, y, verbose=0)
        assert "fed each step: the steps of this evaluate send 0.5 times" in way_of(front, "evaluate")
