"""A program whose `fit` is ended by Ctrl-C again and again: `python -m tests.support.interrupted 20 ahead` for
20 interrupts.

Replicas may be `waiting` for each other, some batches `ahead`, or `apart` without a bound. Each interrupt falls
somewhere into a running step, and a second one into what ends it.
With a third argument, `hosts`, it reads the spec of a cluster from stdin and trains over that. `20 loop PS` interrupts
a loop instead, whose strategy is `PS`.
"""

import json
import os
import random
import signal
import sys
import threading
import time

import keras
import numpy as np
import tensorflow as tf

from autodist_core.strategy import PS
from autodist_keras import DistributedModel
from tests.support.loops import autodist
from tests.support.models import dense_data, dense_model
from tests.support.training import distributed


def interrupt_after(running: threading.Event, over: threading.Event) -> None:
    """Send this process Ctrl-C twice, some moments after each time that `running` is set, and then set `over`."""
    draws = random.Random(5)
    while running.wait():
        running.clear()
        over.clear()
        time.sleep(0.02 * draws.random())
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.005 * draws.random())
        over.set()


class Interrupts(keras.callbacks.Callback):
    """Ctrl-C for this process, once in each training and some steps after it began."""

    def __init__(self):
        super().__init__()
        self.training, self.over = threading.Event(), threading.Event()
        threading.Thread(target=lambda: interrupt_after(self.training, self.over), daemon=True).start()

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:
            self.training.set()

    def on_train_batch_end(self, batch, logs=None):
        # What was looked at after the last step is brought home with what was not.
        float(self.model.optimizer.learning_rate)


def differ(one, other) -> bool:
    return not np.array_equal(one, other)


WAYS = {"waiting": "AllReduce", "ahead": PS(staleness=2), "apart": PS(sync=False)}


def main(wanted: int, way: str, spec: dict | None = None) -> None:
    """Train, be interrupted, train again from there; then see that the model is whole."""
    given, model = dense_data(), dense_model()
    # Batches of more sizes than one, so that the size is left open in the data's specs.
    data = tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(7).repeat()
    count, interrupts, seen = 0, Interrupts(), None
    if spec is None:
        front = distributed(model, strategy=WAYS[way])
    else:
        front = DistributedModel(model, spec, strategy=WAYS[way])
    replicas = len(front.resource_spec.nodes) if spec else 2
    with front:
        front.compile("adam", "mse", jit_compile=False)
        while count < wanted:
            try:
                try:
                    front.fit(data, steps_per_epoch=1_000_000, shuffle=False, verbose=0, callbacks=[interrupts])
                finally:
                    assert interrupts.over.wait(60)  # the second interrupt comes now at the latest
            except KeyboardInterrupt:
                count += 1
            # Each of Adam's moments is worked on by each step: if one stood still, a part of the state was left behind.
            steps = int(model.optimizer.iterations)
            moments = [variable.numpy() for variable in model.optimizer.variables if "momentum" in variable.path]
            assert seen is None or steps == seen[0] or all(map(differ, moments, seen[1])), steps
            assert seen is None or steps != seen[0] or not any(map(differ, moments, seen[1])), steps
            seen = steps, moments
        before = int(model.optimizer.iterations)
        front.fit(data, steps_per_epoch=3, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == before + 3 * (replicas if way == "apart" else 1)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    np.testing.assert_allclose(front.predict(given.x, verbose=0), np.asarray(model(given.x)), rtol=1e-4, atol=1e-6)


def of_a_loop(interrupts: int, strategy: str) -> None:
    """The same for a loop: whatever is interrupted, every step counts once.

    Each interrupt falls somewhere into a call of a marked function. Then the variables are those of some whole number
    of steps, and the loop goes on from there.
    """
    running, over = threading.Event(), threading.Event()
    threading.Thread(target=lambda: interrupt_after(running, over), daemon=True).start()
    # The mean gradient of `one` is always 1, and that of `other` too: both count the steps.
    one, other, steps = tf.Variable(np.zeros((3, 2))), tf.Variable(np.zeros(4)), tf.Variable(0, dtype=tf.int64)
    count = calls = 0
    with autodist(strategy, replicas=2) as front:

        @front.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(x * (tf.reduce_sum(one) + tf.reduce_sum(other)))
            of_one, of_other = tape.gradient(loss, [one, other])
            one.assign_add(of_one)
            other.assign_add(of_other)
            steps.assign_add(1)
            return loss

        x = np.ones(5)
        step(x)
        while count < interrupts:
            try:
                try:
                    running.set()
                    while True:
                        step(x)
                        calls += 1
                finally:
                    assert over.wait(60)  # the second interrupt comes now at the latest
            except KeyboardInterrupt:
                count += 1
            done = int(steps)
            assert calls + 1 <= done <= calls + 1 + count, (calls, done)
            np.testing.assert_array_equal(one.numpy(), np.full((3, 2), float(done)))
            np.testing.assert_array_equal(other.numpy(), np.full(4, float(done)))
        step(x)
        assert int(steps) == done + 1
    assert int(steps) == done + 1 and float(one[0, 0]) == done + 1.0


if __name__ == "__main__":
    number, kind, *more = sys.argv[1:]
    if kind == "loop":
        of_a_loop(int(number), more[0])
    else:
        main(int(number), kind, json.loads(sys.stdin.readline()) if more == ["hosts"] else None)
