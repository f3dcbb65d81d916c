"""A machine whose data pipeline waits for ever, or does not find a file: the call ends, and says why."""

import os
import signal
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import AllReduce
from autodist_keras import DistributedModel
from tests.cluster.hurting import agents
from tests.cluster.over_hosts import LONG_TRAININGS
from tests.support.compare import assert_equally_trained
from tests.support.models import stacked
from tests.support.training import seeded, trained
from tests.support.waiting import until

pytestmark = LONG_TRAININGS
WIDTH, ROWS, BAD = 3, 4, 202


@pytest.fixture
def files(network, tmp_path):
    """A file for each example, on both hosts."""
    names = []
    for number in range(240):
        path = tmp_path / f"{number}.row"
        values = np.random.default_rng(number).normal(size=WIDTH)
        for place in (path, network.hosts[1].file(path)):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(values.tobytes())
        names.append(str(path))
    return names


def batches(names):
    def parsed(name):
        x = tf.ensure_shape(tf.io.decode_raw(tf.io.read_file(name), tf.float64), (WIDTH,))
        return x, tf.sin(tf.reduce_sum(x, keepdims=True))

    return tf.data.Dataset.from_tensor_slices(names).map(parsed).batch(ROWS, drop_remainder=True)


def model():
    layers = [keras.Input((WIDTH,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    return stacked(*layers, optimizer=keras.optimizers.Adam(0.01, name="adam"))


def waits_for_pipe(pid):
    """Whether a thread of a process waits for somebody who writes to a pipe."""
    threads = Path(f"/proc/{pid}/task").glob("*/wchan")
    return any(thread.read_text() == "wait_for_partner" for thread in threads)


def after(steps, names):
    """What one device has trained after so many steps."""
    plain = seeded(model)
    plain.optimizer.build(plain.trainable_variables)  # the last safe state may be that before the first step
    for x, y in batches(names).take(steps):
        plain.train_on_batch(x, y)
    return trained(plain)


def test_ctrl_c_leaves_a_machine_whose_file_never_comes(network, files, caplog):
    """The file is a pipe to which nobody writes, as on a network disk that hangs."""
    pipe = network.hosts[1].file(files[BAD])
    pipe.unlink()
    os.mkfifo(pipe)
    distributed = seeded(model)

    def press():
        until(lambda: BAD // ROWS in begun and any(map(waits_for_pipe, agents(network.hosts[1]))))
        os.kill(os.getpid(), signal.SIGINT)
        # If the state of the last whole step is safe, the call does not wait for the end of the broken one.
        until(lambda: "Another Ctrl-C ends the wait" in caplog.text or ended.is_set())
        pressed.append(time.monotonic())
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    class Begun(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            begun.append(batch)

    begun, pressed, ended, presser = [], [], threading.Event(), threading.Thread(target=press)
    with DistributedModel(distributed, network.pair(), AllReduce()) as front:
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            front.fit(batches(files), verbose=0, shuffle=False, callbacks=[Begun()])
        ended.set()
        presser.join()
        assert time.monotonic() - pressed[0] < 20
        steps = int(distributed.optimizer.iterations)
        assert steps == BAD // ROWS or f"the model holds the state after training step {steps}" in caplog.text
        assert_equally_trained(after(steps, files), trained(distributed))
        pipe.unlink()
        pipe.write_bytes(Path(files[BAD]).read_bytes())
        front.fit(batches(files).skip(steps), verbose=0, shuffle=False)
        assert_equally_trained(after(len(files) // ROWS, files), trained(distributed))


def test_a_file_that_one_machine_does_not_have_is_an_error_of_the_data(network, files, caplog):
    """It is not taken for a fault of the network, after which the machines are started again."""
    network.hosts[1].file(files[BAD]).unlink()
    distributed = seeded(model)
    with DistributedModel(distributed, network.pair(), AllReduce()) as front:
        found = rf"^{network.hosts[1].address}: the data pipeline of this machine raised an error: .*{files[BAD]}"
        with pytest.raises(tf.errors.NotFoundError, match=found):
            front.fit(batches(files), verbose=0, shuffle=False)
        assert "started again" not in caplog.text
        assert_equally_trained(after(BAD // ROWS, files), trained(distributed))
