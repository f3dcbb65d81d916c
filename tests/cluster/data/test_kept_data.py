"""Arrays that fit on the machines travel once, and then each step feeds the numbers of rows."""

import re
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime import sent_arrays
from autodist_core.runtime.kept_arrays import KEPT_VARIABLE
from autodist_core.strategy import PS, AllReduce
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import HERE, LONG_TRAININGS, alone, assert_equal_over_a_pair, losing, parts, sent_by
from tests.support.compare import assert_equally_trained
from tests.support.made_data import Batches, learning, untuned
from tests.support.models import DENSE, dense_data
from tests.support.training import SEED, seeded, trained

pytestmark = LONG_TRAININGS
FED = "fed each step"


def everything(front, model):
    """Shuffled epochs of batches of 7, 7, 7 and 1 examples, weights of all kinds, validations, a fit that goes on."""
    data, weights = dense_data(), np.linspace(0.5, 2.0, 22)
    settings = {"verbose": 0, "batch_size": 7}
    results = {}
    for name, options in {
        "shuffled": {"epochs": 4, "validation_split": 0.3, "validation_freq": 2},
        "weighted": {"epochs": 4, "initial_epoch": 1, "sample_weight": weights, "shuffle": "batch"},
        "classes": {"epochs": 8, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "steps_per_epoch": 2},
        "validated": {"epochs": 4, "shuffle": False, "validation_data": (data.x[:9], data.y[:9]), "batch_size": 22},
    }.items():
        keras.utils.set_random_seed(SEED)
        results[name] = front.fit(data.x, data.y, **{**settings, **options}).history
        if front is not model:
            assert "sent once to each machine" in str(front.plan()), name
    results["evaluate"] = front.evaluate(data.x, data.y, verbose=0)
    return results


def test_kept_arrays_train_as_one_device(network):
    assert_equal_over_a_pair(network, DENSE, everything)


def images(count=600):
    """2.4 MB, of which a small model uses little."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 500)), rng.normal(size=(count, 1))


def test_the_chief_sends_kept_arrays_once(network, monkeypatch):
    """Where they may not be kept, half of them travel in each epoch. The next fit sends its own arrays."""
    x, y = images()
    with DistributedModel(seeded(learning), network.pair(), AllReduce()) as front:
        fit = partial(front.fit, batch_size=60, epochs=6, verbose=0)
        monkeypatch.setenv(KEPT_VARIABLE, "1000000")
        assert sent_by(network, partial(fit, x, y))[0] > 3 * x.nbytes
        assert f"{FED}: it has 2.3 MiB, and machines keep 976.6 KiB at most" in str(front.plan())
        monkeypatch.delenv(KEPT_VARIABLE)
        for rows in (x, x[:400] + 1.0):
            sent, _ = sent_by(network, partial(fit, rows, y[: len(rows)]))
            assert rows.nbytes < sent < 1.3 * rows.nbytes
        # Replicas that do not wait for each other compute on the same rows: without learning, on the same weights.
        front.compile(keras.optimizers.SGD(0.0), "mse", strategy=PS(staleness=2))
        losses = fit(x, y).history["loss"]
        assert "sent once to each machine" in str(front.plan())
        np.testing.assert_allclose(losses, front.model.evaluate(x, y, verbose=0), rtol=1e-12)
        front.fit(x, y, batch_size=60, epochs=2, verbose=0)
        fed = "rows of each batch, 2.3 MiB in this fit; sending them all of the data beforehand would take 2.3 MiB"
        assert f"{FED}: your program sends the machines their {fed}" in str(front.plan())
        front.fit(Batches(lambda index: (x[:4], y[:4]), 2), epochs=2, verbose=0)
        assert f"{FED}: it is Python code that runs in your program (PyDataset)" in str(front.plan())
        front.fit(((x[:60], y[:60]) for _ in range(9)), steps_per_epoch=2, verbose=0, shuffle=False)
        assert f"{FED}: it is Python code that runs in your program (GeneratorData)" in str(front.plan())


def test_the_log_says_how_far_a_long_sending_is(network, monkeypatch, caplog):
    """The arrays of a dataset are in its graph, which is sent like arrays."""
    monkeypatch.setattr(sent_arrays, "MESSAGE_BYTES", 300_000)
    monkeypatch.setattr(sent_arrays, "PART_BYTES", 100_000)
    x, y = images()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(60)
    network.hosts[0].shape("5mbit")
    try:
        with DistributedModel(seeded(learning), network.pair(), AllReduce()) as front:
            front.fit(x, y, batch_size=60, epochs=3, verbose=0, shuffle=False)
            arrays = front.model.get_weights()
            front.model.set_weights(seeded(learning).get_weights())
            front.fit(untuned(dataset), epochs=3, verbose=0, shuffle=False)
            for expected, actual in zip(arrays, front.model.get_weights(), strict=True):
                np.testing.assert_allclose(actual, expected, rtol=1e-12)
    finally:
        network.hosts[0].unshape()
    said = [re.sub(r"\d+\.\d [KM]iB of the", "… of the", line) for line in caplog.messages if line.startswith("sent ")]
    assert "sent … of the data of 2.3 MiB to 2 machines" in said
    assert "sent … of the data pipeline of 2.3 MiB to 1 machine" in said


FOUR_EPOCHS = {"batch_size": 50, "verbose": 0, "epochs": 4}


def test_a_machine_that_was_lost_gets_the_arrays_again(network):
    """Also if the user has written to the arrays in the meantime, which no epoch sees."""
    x, y = images(120)
    expected = alone(learning, lambda model, _: model.fit(x, y, **FOUR_EPOCHS))

    def train(front, callbacks):
        def spoil(batch, logs):
            if front.model.optimizer.iterations.numpy() == 5:
                x[:] = 0.0

        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=spoil), *callbacks]
        front.fit(x, y, callbacks=callbacks, **FOUR_EPOCHS)

    found, plan = losing(network, learning, train, step=5)
    assert "sent once to each machine" in plan and not x.any()
    assert_equally_trained(expected, found)


@pytest.mark.parametrize("kept_first", [True, False], ids=["from kept to fed", "from fed to kept"])
def test_a_training_goes_on_on_other_machines(network, tmp_path, kept_first):
    """A saved position is one in row numbers or in batches, and so is that of the training that goes on."""
    x, y = images(120)

    def train(front, callbacks):
        front.fit(x, y, callbacks=callbacks, **FOUR_EPOCHS)

    specs = [network.pair(1, 2), HERE]
    model, before, plan = parts(learning, specs if kept_first else specs[::-1], tmp_path, train, ends=5)
    assert_equally_trained(alone(learning, train), trained(model))
    assert ("sent once to each machine" in before) == kept_first
    assert ("fed each step: so it was when the state was saved" in plan) != kept_first
