"""Ctrl-C ends a training, and neither the process nor the model."""

import gc
import signal
import sys
from collections import Counter
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from tests.support.models import DENSE, dense_data
from tests.support.programs import printed_by
from tests.support.training import compiled, distributed


@pytest.mark.parametrize("way, interrupts", [("ahead", 40), ("waiting", 40), ("apart", 40)])
def test_interrupted_again_and_again(way: str, interrupts: int):
    printed_by("interrupted", interrupts, way)


@pytest.fixture
def handler():
    """Sets the handler of Ctrl-C for a test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda function: signal.signal(signal.SIGINT, function)
    signal.signal(signal.SIGINT, before)


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


@pytest.mark.quick("in_a_callback_of_the_collector")
@pytest.mark.parametrize("press", [as_an_object_ends, in_a_callback_of_the_collector])
def test_ctrl_c_where_python_drops_exceptions_ends_the_training(press: Callable[[], None], handler):
    pressed = []

    def interrupts(number, frame):
        pressed.append(frame)
        raise KeyboardInterrupt("of the program's own")

    class Presses(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                press()

    given = dense_data()
    data = tf.data.Dataset.from_tensor_slices((given.x, given.y)).batch(7).repeat()
    with distributed(compiled(DENSE)) as front:
        handler(interrupts)
        with pytest.raises(KeyboardInterrupt, match="of the program's own"):
            front.fit(data, steps_per_epoch=200, shuffle=False, verbose=0, callbacks=[Presses()])
        assert 3 <= int(front.model.optimizer.iterations) <= 5
        assert len(pressed) == 1 and pressed[0] is not None, "one Ctrl-C calls the handler once, with its frame"
        front.fit(data, steps_per_epoch=2, shuffle=False, verbose=0)


def test_what_a_callback_sets_for_ctrl_c_stays(handler, monkeypatch):
    """And what was there before it is called by it, during the training and after it."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reports.append(str(unraisable.exc_value)))
    presses, reports = [], []
    handler(lambda *_: presses.append("before"))

    class Sets(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.handler, self.hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
            signal.signal(signal.SIGINT, self.pressed)
            sys.unraisablehook = self.dropped
            signal.raise_signal(signal.SIGINT)

        def pressed(self, *given):
            presses.append("set")
            self.handler(*given)

        def dropped(self, unraisable):
            reports.append("set")
            self.hook(unraisable)

    class Ends:
        def __del__(self):
            raise KeyboardInterrupt("of no Ctrl-C")

    data, sets = dense_data(7), Sets()
    with distributed(compiled(DENSE, "sgd")) as front:
        front.fit(data.x, data.y, verbose=0, callbacks=[sets])
    assert signal.getsignal(signal.SIGINT) == sets.pressed and sys.unraisablehook == sets.dropped
    signal.raise_signal(signal.SIGINT)
    Ends()
    assert presses == ["set", "before"] * 2 and reports == ["set", "of no Ctrl-C"]


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

    with distributed(compiled(DENSE, "sgd")) as front:
        op_callbacks.add_op_callback(note)
        try:
            front.fit(data, epochs=3, shuffle=False, verbose=0)
        finally:
            op_callbacks.remove_op_callback(note)
    assert "IteratorGetNext" not in eagerly
    # The functions whose graphs run, by how often: one is asked for every batch.
    assert max(count for kind, count in eagerly.items() if kind.startswith("__inference")) >= 3 * len(rows)
