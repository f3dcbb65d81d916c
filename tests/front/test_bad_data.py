"""Data that ends, is empty, is not finite or fails on the way: Keras's own behaviour, and whole weights."""

import importlib
import re
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_keras.training.step_functions import SIZED
from tests.support.compare import assert_equally_trained, assert_same, named
from tests.support.layers import Does
from tests.support.models import DENSE, even_data, ready, stacked
from tests.support.training import (
    QUIET,
    assert_equal_training,
    compiled,
    distributed,
    seeded,
    train_distributed,
    train_plain,
)


def test_nan_in_the_data_gives_what_one_device_gives():
    def program(front, model):
        data = even_data()
        data.x[17, 2] = np.nan
        return {"loss": front.fit(data.x, data.y, epochs=1, **QUIET).history["loss"]}

    expected = train_plain(DENSE, program)
    assert np.isnan(expected.result["loss/0"]) and np.isnan(expected.weights["dense/first/kernel"]).any()
    assert_same(expected.everything, train_distributed(DENSE, program, replicas=3).everything)


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.quick("dataset")
@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_no_examples_at_all(form: str):
    """There is nothing to tell, and nothing is written; then there is something to learn from."""
    empty, data = (np.zeros((0, 5)), np.zeros((0, 1))), even_data()

    def attempt(front, model):
        before = model.get_weights()
        given = empty if form == "arrays" else (tf.data.Dataset.from_tensor_slices(empty).batch(4),)
        told = front.fit(*given, epochs=1, verbose=0, shuffle=False).history, front.evaluate(*given, verbose=0)
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
        assert front.fit(data.x, data.y, epochs=1, **QUIET).history.keys() == {"loss", "mae"}
        return told

    # Without a batch, Keras 3.16 builds no metrics.
    with pytest.raises(ValueError, match="metric has not yet been built") if SIZED else nullcontext():
        assert attempt(model := compiled(DENSE), model) == ({}, [])
    with distributed(model := compiled(DENSE)) as front:
        assert attempt(front, model) == ({}, [])


def test_a_generator_that_raises_leaves_whole_weights():
    """The error is the user's own, and the state is that after the last whole step."""
    data = even_data()

    def batches():
        yield data.x[:7], data.y[:7]
        yield data.x[7:14], data.y[7:14]
        raise LookupError("the third batch is missing")

    def failing(front, model):
        dataset = tf.data.Dataset.from_generator(
            batches, output_signature=(tf.TensorSpec((None, 5), "float64"), tf.TensorSpec((None, 1), "float64"))
        )
        with pytest.raises(Exception, match="the third batch is missing"):
            front.fit(dataset, epochs=1, shuffle=False, verbose=0)

    def two_batches(front, model):
        front.fit(data.x[:14], data.y[:14], epochs=1, **QUIET)

    assert_equally_trained(train_plain(DENSE, two_batches), train_distributed(DENSE, failing))


def test_a_callback_that_raises_leaves_whole_weights():
    def program(front, model):
        def fail(batch, logs):
            if batch == 2:
                raise LookupError("enough")

        data, callback = even_data(), keras.callbacks.LambdaCallback(on_train_batch_end=fail)
        with pytest.raises(LookupError, match="enough"):
            front.fit(data.x, data.y, callbacks=[callback], epochs=1, **QUIET)
        interrupted = named(model.weights)
        return [interrupted, front.fit(data.x, data.y, epochs=1, **QUIET).history]

    assert_equal_training(DENSE, program, replicas=3, strategy="PS")


class Checked(keras.layers.Layer):
    """Looks ids up, and asserts that they are even."""

    def __init__(self):
        super().__init__(name="checked")
        self.table = keras.layers.Embedding(6, 2, name="table")

    def call(self, ids):
        rows = self.table(ids)  # a lookup
        tf.debugging.assert_equal(ids % 2, tf.zeros_like(ids), "an odd id")
        return tf.reduce_mean(rows, 1)


ZEROS = np.zeros((8, 3), "int32")


def _with(at: tuple[int, ...], value: int) -> np.ndarray:
    changed = np.zeros((8, 3)[: len(at)], "int32")
    changed[at] = value
    return changed


FAILING = {
    "an id": (_with((6, 1), 1000), ZEROS[:, 0],
              r"in layer 'table': indices\[2,1\] = 1000 is not in \[0, 6\)\nThe operation is GatherV2 \(.*\), made at "
              r'File ".*test_bad_data.py", line \d+, in call: rows = self.table\(ids\)  # a lookup\n'
              r"This happened on localhost:CPU:1, during training step 3 with examples 4 to 7 of the batch.\n"),
    "a label": (ZEROS, _with((1,), 7),
                r"in loss 'sparse_categorical_crossentropy': Received a label value of 7 .*\n"
                r"The operation is \w+ \([\w/]+\)\n"
                r"This happened on localhost:CPU:0, during training step 3 with examples 0 to 3 of the batch.\n"),
    "an assertion": (_with((6, 1), 1), ZEROS[:, 0],
                     r"in layer 'checked': assertion failed: \[an odd id\].*\n.*File .*test_bad_data.py.*assert_equal.*"
                     r"\nThis happened on localhost:CPU:1, .* examples 4 to 7 of the batch.\n"),
}  # fmt: skip


def test_a_step_that_fails_names_whose_operation_it_was_and_changes_nothing():
    """The error has the layer or the loss, the line of the program in the step, the replica, and its examples."""

    def build():
        return keras.Sequential([keras.Input((3,), dtype="int32"), Checked(), keras.layers.Dense(3)])

    model = seeded(build)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    for case, (ids, labels, said) in FAILING.items():
        with distributed(model, "AllReduce") as front:
            front.fit(ZEROS.repeat(2, 0), ZEROS[:, 0].repeat(2), batch_size=8, shuffle=False, verbose=0)
            before = named(model.weights)
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s)^{said}The step changed nothing") as error:
                front.fit(ids, labels, batch_size=8, shuffle=False, verbose=0)
            assert case and "root error" not in str(error.value)
            assert_same(before, named(model.weights), tolerance=0.0)


def test_a_step_that_fails_repeats_what_the_plan_said_of_the_operation():
    edges = tf.constant([0, 5, 7, 2])
    mixes = Does(lambda x: x + tf.reduce_mean(tf.gather(x, edges)), name="graph")
    model = stacked(keras.Input((3,)), mixes, keras.layers.Dense(1), jit_compile=False)
    said = r"indices\[\d\] = \d is not in \[0, 4\).*The plan says: not exact: in layer 'graph', GatherV2 .*place"
    with distributed(model) as front, pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){said}"):
        front.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)


PACKAGE = """
import keras, tensorflow as tf
class Picks(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        errors = (y_pred[:, 0] - y) ** 2 / tf.reduce_sum(y_pred)
        return tf.reduce_mean(errors * tf.gather(tf.constant([1.0, 2.0], errors.dtype), tf.cast(x[:, 0], "int32")))
"""


def test_the_line_of_a_package_is_named_in_notes_and_errors(tmp_path, monkeypatch):
    file = tmp_path / "site-packages" / "picks.py"
    file.parent.mkdir()
    file.write_text(PACKAGE)
    monkeypatch.syspath_prepend(file.parent)
    package = importlib.import_module("picks")
    model = ready(seeded(lambda: package.Picks([keras.Input((3,)), keras.layers.Dense(1)])), "sgd", jit_compile=False)
    with distributed(model) as front:
        plan = front.plan(np.ones((8, 3)), np.ones(8))
        assert f'and a replica has only its own (File "{file}", line 5, in compute_loss)' in plan
        with pytest.raises(tf.errors.InvalidArgumentError, match=f'made at File "{re.escape(str(file))}", line 6, in'):
            front.fit(np.full((8, 3), 5.0), np.ones(8), verbose=0)


@pytest.mark.parametrize("of", ["weights", "targets"])
def test_what_does_not_fit_is_refused_before_training_as_keras_refuses_it(of: str):
    """Two weights for each example would fit the two examples of a replica."""
    x, y, weights = np.ones((4, 3)), np.ones((4, 1)), np.ones((4, 2))

    def refusal(front) -> str:
        with pytest.raises(ValueError) as error:
            if of == "weights":
                front.fit(x, y, sample_weight=weights, batch_size=4, verbose=0)
            else:
                front.fit(x, np.ones((4, 2, 3)), batch_size=4, verbose=0)
        # Keras 3.16 begins with the output's name, or with the loss's where the step itself builds the loss.
        return re.sub(r"data_\d|input_\d|\?|4|output '(out|mse)'", "_", str(error.value))

    def model():
        return stacked(keras.Input((3,)), keras.layers.Dense(1, name="out"), name="small", jit_compile=False)

    with distributed(model()) as front:
        assert refusal(front) == refusal(model())
        assert front.optimizer.iterations == 0
