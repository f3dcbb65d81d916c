"""Data that ends, is empty, is not finite or fails on the way: Keras's own behaviour, and whole weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_equally_trained, assert_same, named
from tests.support.models import BATCH, DENSE, even_data
from tests.support.training import (
    QUIET,
    assert_equal_training,
    compiled,
    distributed,
    seeded,
    train_distributed,
    train_plain,
)


def test_a_dataset_that_ends_early_warns_as_keras_does():
    def program(front, model):
        data = even_data()
        dataset = tf.data.Dataset.from_tensor_slices((data.x, data.y)).batch(BATCH)
        with pytest.warns(UserWarning, match="ran out of data"):
            history = front.fit(dataset, steps_per_epoch=2, epochs=3, shuffle=False, verbose=0).history
        return history

    assert_equal_training(DENSE, program, replicas=2)


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

    expected = attempt(model := compiled(DENSE), model)
    with distributed(model := compiled(DENSE)) as front:
        assert attempt(front, model) == expected


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


@pytest.mark.quick("PS")
@pytest.mark.parametrize("builder", ["AllReduce", "PS"])
def test_a_callback_that_raises_leaves_whole_weights(builder: str):
    def program(front, model):
        def fail(batch, logs):
            if batch == 2:
                raise LookupError("enough")

        data, callback = even_data(), keras.callbacks.LambdaCallback(on_train_batch_end=fail)
        with pytest.raises(LookupError, match="enough"):
            front.fit(data.x, data.y, callbacks=[callback], epochs=1, **QUIET)
        interrupted = named(model.weights)
        return [interrupted, front.fit(data.x, data.y, epochs=1, **QUIET).history]

    assert_equal_training(DENSE, program, replicas=3, strategy=builder)


def test_labels_out_of_range_leave_whole_weights():
    """A step that fails inside the graph changes nothing."""

    def build():
        layers = keras.layers
        return keras.Sequential(
            [keras.Input((5,), dtype="int32", name="x"), layers.Embedding(3, 2, name="table"),
             layers.Flatten(name="flat"), layers.Dense(1, name="out")], name="ids",
        )  # fmt: skip

    ids = np.zeros((8, 5), "int32")
    ids[6, 1] = 1000
    model = seeded(build)
    model.compile("sgd", "mse", jit_compile=False)
    before = named(model.weights)
    with distributed(model, "AllReduce") as front:
        with pytest.raises(Exception, match=r"(?s)1000.*is not in \[0, 3\)"):
            front.fit(ids, np.zeros((8, 1)), batch_size=8, epochs=1, verbose=0)
        assert_same(before, named(model.weights), tolerance=0.0)
