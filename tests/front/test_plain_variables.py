"""Whoever reads or writes a plain `tf.Variable` of a model while it trains, also by what was traced before `fit`."""

from __future__ import annotations

import copy
import pickle
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime import LocalSession
from tests.support.compare import flat
from tests.support.models import DENSE, even_data
from tests.support.training import QUIET, assert_equal_training, distributed, fit, seeded

pytestmark = pytest.mark.oldest


class Counting(keras.Model):
    """Scales its output by a plain variable, and adds up in another one what it has seen."""

    def __init__(self):
        super().__init__(name="counting")
        self.out = keras.layers.Dense(1, name="out")
        self.scale = tf.Variable(1.0, trainable=False, dtype="float64")
        self.seen = tf.Variable([0.0, 0.0], trainable=False, dtype="float64", aggregation=tf.VariableAggregation.MEAN)

    def call(self, x, training=False):
        y = self.scale * self.out(x)
        if training:
            self.seen.assign_add([1.0, 2.0])
        return y


def counting() -> keras.Model:
    model = seeded(Counting)
    model.compile("adam", "mse", jit_compile=False)
    model(even_data().x[:1])
    return model


def at_each_batch(function):
    return [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: function(batch))]


READS = {
    "numpy": lambda model: model.seen.numpy(),
    "an operation": lambda model: (model.seen + 0.0).numpy(),
    "a raw operation": lambda model: tf.raw_ops.Neg(x=model.seen).numpy(),
    "its handle": lambda model: tf.raw_ops.ReadVariableOp(resource=model.seen.handle, dtype=tf.float64).numpy(),
    "a slice": lambda model: model.seen[1].numpy(),
    "repr": lambda model: [float(part) for part in re.findall(r"[0-9]+\.", repr(model.seen))],
    "a copy": lambda model: copy.deepcopy(model.seen).numpy(),
    "an array": lambda model: np.asarray(model.seen),
    "a gradient": lambda model: _gradient(model.seen).numpy(),
    "an argument": lambda model: _doubled(model.seen).numpy(),
}


@tf.function
def _doubled(variable):
    return 2.0 * variable


def _gradient(variable: tf.Variable) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(variable)
        squares = tf.reduce_sum(variable * variable)
    return tape.gradient(squares, variable)


def test_a_plain_variable_is_read_at_each_batch():
    """In each of the ways. The variable's first read of a batch is another one from batch to batch."""
    def program(front, model):
        seen: dict[str, list] = {name: [] for name in READS}

        def read(batch):
            ways = list(READS)
            for name in ways[batch % len(ways):] + ways[: batch % len(ways)]:
                seen[name].append(READS[name](model))

        fit(front, even_data(), callbacks=at_each_batch(read))
        assert all(str(values[0]) != str(values[1]) for values in seen.values())
        return {"seen": seen}

    assert_equal_training(counting, program)


def test_a_function_that_was_traced_before_fit_sees_current_weights():
    def program(front, model):
        kernel, seen = model.layers[-1].kernel, []
        weights = tf.function(lambda: (kernel + 0.0, tf.reduce_sum(kernel.value)))
        outer = tf.function(lambda: weights())
        concrete = tf.function(lambda: kernel * 2.0).get_concrete_function()
        weights(), outer(), concrete()
        fit(front, even_data(), callbacks=at_each_batch(
            lambda batch: seen.append([np.asarray(part) for part in (*weights(), *outer(), concrete())])
        ))
        assert not np.array_equal(seen[0][0], seen[1][0])
        return {"seen": seen}

    assert_equal_training(DENSE, program)


@pytest.mark.long
def test_a_gradient_by_a_function_that_was_traced_before_fit_is_of_current_weights():
    def program(front, model):
        kernel, seen = model.layers[-1].kernel.value, []

        @tf.function
        def squares():
            return tf.reduce_sum(kernel * kernel)

        def gradient(batch):
            with tf.GradientTape() as tape:
                value = squares()
            seen.append(tape.gradient(value, kernel).numpy())

        squares()
        fit(front, even_data(), callbacks=at_each_batch(gradient))
        return {"seen": seen}

    assert_equal_training(DENSE, program)


@pytest.mark.quick("plain")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "keras"])
def test_what_a_function_that_was_traced_before_fit_writes_counts(plain: bool):
    def program(front, model):
        variable = model.scale if plain else model.out.kernel
        halve = tf.function(lambda: variable.assign(0.5 * variable))
        halve()
        return fit(front, even_data(), callbacks=at_each_batch(lambda batch: halve()))

    assert_equal_training(counting, program)


def test_a_tensorflow_variable_that_was_taken_out_before_fit_is_current():
    def program(front, model):
        kernel, seen = model.layers[-1].kernel.value, []

        def shrink(batch):
            seen.append(kernel.numpy())
            kernel.assign(0.9 * kernel)

        return {"history": fit(front, even_data(), callbacks=at_each_batch(shrink)), "seen": seen}

    assert_equal_training(DENSE, program)


def test_a_checkpoint_of_a_callback_has_and_restores_the_current_state(tmp_path):
    def program(front, model):
        checkpoint, saved = tf.train.Checkpoint(model=model, seen=model.seen), []

        def save_or_restore(batch):
            if batch % 2 == 0:
                saved.append(checkpoint.write(str(tmp_path / f"{id(model)}-{len(saved)}")))
                reader = tf.train.load_checkpoint(saved[-1])
                seen.append([
                    reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())
                    if name.endswith("VARIABLE_VALUE")
                ])
            else:
                checkpoint.read(saved[-1])

        seen = []
        history = fit(front, even_data(), callbacks=at_each_batch(save_or_restore))
        assert seen and seen[0]
        return {"history": history, "seen": seen}

    assert_equal_training(counting, program)


@pytest.mark.long
def test_a_slice_of_a_plain_variable_is_assigned():
    def program(front, model):
        return fit(front, even_data(), callbacks=at_each_batch(lambda batch: model.seen[0].assign(0.25)))

    assert_equal_training(counting, program)


def test_variables_are_of_their_own_classes_but_while_the_model_trains():
    model, seen = counting(), []
    plain, of_keras = type(model.scale), type(model.out.kernel)

    def look(batch):
        variable = model.scale
        assert type(variable) is not plain and isinstance(variable, plain) and type(variable).__name__ == plain.__name__
        assert isinstance(variable, tf.Variable) and type(model.out.kernel) is of_keras
        assert type(copy.deepcopy(variable)) is plain
        before = len(traced)
        _count(variable), _count(tf.Variable(1.0, trainable=False, dtype="float64"))
        seen.append(len(traced) - before)
        assert pickle.loads(pickle.dumps(np.asarray(model.out.kernel))).shape == (5, 1)

    traced = []

    @tf.function
    def _count(variable):
        traced.append(variable)
        return variable + 1.0

    _count(model.scale)
    with distributed(model) as front:
        front.fit(even_data().x, even_data().y, callbacks=at_each_batch(look), **QUIET)
    assert type(model.scale) is plain and seen and not any(seen), "a watched variable has the type of an unwatched one"


@pytest.mark.long
def test_a_model_is_pickled_while_it_trains():
    def program(front, model):
        seen = []
        fit(front, even_data(), callbacks=at_each_batch(
            lambda batch: seen.append(flat(pickle.loads(pickle.dumps(model)).get_weights()))
        ))
        return {"seen": seen}

    assert_equal_training(DENSE, program)


@pytest.mark.long
def test_a_pipeline_that_is_iterated_during_fit_reads_current_weights():
    def program(front, model):
        kernel, seen, open_ones = model.layers[-1].kernel, [], []
        numbers = tf.data.Dataset.range(100)
        sums = tf.data.Dataset.zip(numbers.map(lambda index: tf.reduce_sum(kernel.value)), numbers)

        def read(batch):
            if batch == 0:
                open_ones[:] = [iter(sums)]
            seen.append([float(next(iter(sums))[0]), float(next(open_ones[0])[0])])

        fit(front, even_data(), callbacks=at_each_batch(read))
        assert len({first for first, _ in seen}) == len(seen)
        return {"seen": seen}

    assert_equal_training(DENSE, program)


@pytest.mark.quick("raw-interrupt")
@pytest.mark.parametrize("failure", [RuntimeError("lost"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("look", [
    lambda variable: tf.raw_ops.Neg(x=variable), lambda variable: tf.concat([variable, variable], 0),
    lambda variable: variable.numpy(),
], ids=["raw", "several", "numpy"])
def test_an_error_in_a_look_ends_the_training_and_not_the_process(look, failure, monkeypatch):
    """TensorFlow's code in C++ asks a variable for its handle, and the process would end if it got an error."""
    model, settle, looks, raised, looking = counting(), LocalSession.settle, [], [], []

    def failing(session, but=None):
        if looking and len(looks) == 2 and not raised:
            raised.append(True)
            raise failure
        settle(session, but)

    def call(batch):
        looks.append(batch)
        looking.append(True)
        look(model.seen)
        looking.clear()

    monkeypatch.setattr(LocalSession, "settle", failing)
    with distributed(model) as front, pytest.raises(type(failure)):
        front.fit(even_data().x, even_data().y, callbacks=at_each_batch(call), **QUIET)
    assert raised and len(looks) == 2
    assert model.seen.numpy().tolist() == [2.0, 4.0], "the steps before it count"
