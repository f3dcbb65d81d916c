"""The data of `evaluate`, `predict` and validations takes the ways of that of `fit`."""

import os
import re
import signal
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import NodeLostError
from autodist_core.strategy import PS
from autodist_keras import DistributedModel
from tests.cluster.data.test_data_pipelines import rows, scaled
from tests.cluster.hurting import kill
from tests.cluster.over_hosts import LONG_TRAININGS, assert_equal_over_a_pair, nothing_left, sent_by
from tests.support.made_data import made, small, untuned
from tests.support.models import DENSE, dense_data
from tests.support.training import seeded
from tests.support.waiting import HANGS, until

pytestmark = LONG_TRAININGS
ON_MACHINES = "each machine runs its tf.data pipeline"
KEPT = "sent once to each machine"


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
            for loop in ("evaluate", "predict"):
                assert re.search(f": fed each step: your program sends .* in this {loop}; ", way_of(front, loop))
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
    assert_equal_over_a_pair(network, DENSE, everything, repeated, built=False)


def test_the_chief_sends_little(network):
    """A dataset is not fed, arrays that come again are sent once, and replicas need not wait for each other."""
    whole = tf.data.Dataset.range(600).map(made)
    x, y = next(iter(whole.batch(600)))
    x, y = np.array(x), np.array(y)
    with DistributedModel(seeded(small), network.pair(), PS(staleness=2)) as front:
        loss = front.model.evaluate(x, y, verbose=0)
        front.evaluate(x[:60], y[:60], verbose=0)
        for batches in (whole.batch(60), whole.batch(60, drop_remainder=True)):
            sent, found = sent_by(network, lambda batches=batches: front.evaluate(untuned(batches), verbose=0))
            assert sent < 0.25 * x.nbytes
            assert found == pytest.approx(loss, rel=1e-12)
            sent, found = sent_by(network, lambda batches=batches: front.predict(untuned(batches), verbose=0))
            assert sent < 0.25 * x.nbytes
            np.testing.assert_allclose(found, front.model.predict(x, verbose=0), rtol=1e-12)

        def often():
            with front.one_call():
                return [front.evaluate(x, y, batch_size=60, verbose=0) for _ in range(8)]

        # Half of the rows twice, and then all rows once.
        sent, found = sent_by(network, often)
        assert 1.9 < sent / x.nbytes < 2.4
        assert found == pytest.approx([loss] * 8, rel=1e-12)
        front.evaluate(x, y, verbose=0)
        fed = "rows of each batch, 1.1 MiB in this evaluate; sending them all of the data beforehand would take 2.3 MiB"
        assert fed in way_of(front, "evaluate")


def slow(number):
    """An image for which a machine needs some time."""
    waste = tf.sort(tf.random.stateless_uniform([200_000], tf.stack([number, 3]), dtype=tf.float64))
    x, y = made(number)
    return x + 0.0 * waste[0], y


KINDS = {
    "followed": lambda: untuned(tf.data.Dataset.range(60).map(slow).batch(5).prefetch(2)),
    "foreseen": lambda: untuned(tf.data.Dataset.range(60).map(slow).batch(5, drop_remainder=True).prefetch(2)),
}


class Hurt(keras.callbacks.Callback):
    """Does something once, after some batches of an evaluation or a prediction have begun."""

    def __init__(self, after, how):
        super().__init__()
        self.after, self.how = after, how

    def on_test_batch_begin(self, batch, logs=None):
        if batch == self.after:
            self.how()

    on_predict_batch_begin = on_test_batch_begin


def interrupt_soon():
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_what_ends_in_the_middle_leaves_nothing(network):
    """Ctrl-C, and an agent that is killed; the same model evaluates and predicts afterwards."""
    # TensorFlow does not end every call when a machine is lost, as other tests let happen.
    before = threading.enumerate()
    model = seeded(small)
    x = np.stack([made(number)[0] for number in range(60)])
    expected = {"evaluate": model.evaluate(KINDS["followed"](), verbose=0), "predict": model.predict(x, verbose=0)}

    def check(loop, kind, *callbacks):
        found = getattr(front, loop)(KINDS[kind](), verbose=0, callbacks=list(callbacks))
        assert ON_MACHINES in way_of(front, loop)
        np.testing.assert_allclose(found, expected[loop], rtol=1e-12)

    spec = network.pair(1, 2)
    with DistributedModel(model, spec, PS(), on_failure="restart", lost_after=5.0) as front:
        for loop in ("evaluate", "predict"):
            for kind in KINDS:
                begin = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    check(loop, kind, Hurt(3, interrupt_soon))
                assert time.monotonic() - begin < HANGS
                check(loop, kind)
            check(loop, kind, Hurt(2, lambda: kill(network.hosts[1])))
        front.on_failure = "raise"
        for loop, kind in zip(("evaluate", "predict"), KINDS, strict=True):
            begin = time.monotonic()
            with pytest.raises(NodeLostError, match="was lost during inference step"):
                check(loop, kind, Hurt(2, lambda: kill(network.hosts[1])))
            assert time.monotonic() - begin < HANGS
            check(loop, kind)
    assert nothing_left(network) == []
    until(lambda: not [
        thread for thread in threading.enumerate() if thread.name.startswith("autodist") and thread not in before
    ])
