"""Ctrl-C ends a training, and neither the process nor the model."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from tests.support.models import dense_data, dense_model
from tests.support.training import distributed, seeded

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize("way, interrupts", [("ahead", 60), ("waiting", 60), ("apart", 60)])
def test_interrupted_again_and_again(way: str, interrupts: int):
    command = [sys.executable, "-m", "tests.support.interrupted", str(interrupts), way]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr


def as_an_object_ends() -> None:
    class Ends:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    Ends()


def in_a_callback_of_the_collector() -> None:
    def collected(phase, info):
        gc.callbacks.remove(collected)
        signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(collected)
    gc.collect()


@pytest.mark.parametrize("press", [as_an_object_ends, in_a_callback_of_the_collector])
def test_ctrl_c_where_python_drops_exceptions_ends_the_training(press: Callable[[], None]):
    class Presses(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                press()

    given = dense_data()
    data = tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(7).repeat()
    with distributed(seeded(dense_model)) as front:
        front.compile("adam", "mse", jit_compile=False)
        with pytest.raises(KeyboardInterrupt):
            front.fit(data, steps_per_epoch=200, shuffle=False, verbose=0, callbacks=[Presses()])
        assert 3 <= int(front.model.optimizer.iterations) <= 5
        front.fit(data, steps_per_epoch=2, shuffle=False, verbose=0)


def test_batches_of_a_dataset_are_taken_in_one_graph_whatever_their_sizes():
    """An operation that runs eagerly with shapes among its attributes is where Ctrl-C may end the process."""
    given = dense_data()
    rows = np.arange(9)[None, :] < np.arange(1, 10)[:, None]  # batches of 1 to 9 examples
    data = tf.data.Dataset.from_generator(
        lambda: ((given.x[:9][row], given.y[:9][row]) for row in rows),
        output_signature=(tf.TensorSpec((None, 5), tf.float64), tf.TensorSpec((None, 1), tf.float64)),
    ).apply(tf.data.experimental.assert_cardinality(len(rows)))
    eagerly = Counter()

    def note(kind, inputs, attributes, outputs, op_name=None, graph=None):
        if graph is None:
            eagerly[kind] += 1

    with distributed(seeded(dense_model)) as front:
        front.compile("sgd", "mse", jit_compile=False)
        op_callbacks.add_op_callback(note)
        try:
            front.fit(data, epochs=3, shuffle=False, verbose=0)
        finally:
            op_callbacks.remove_op_callback(note)
    assert "IteratorGetNext" not in eagerly
    # The functions whose graphs run, by how often: one is asked for every batch.
    assert max(count for kind, count in eagerly.items() if kind.startswith("__inference")) >= 3 * len(rows)
