"""Whoever reads or writes a plain `tf.Variable` of a model while it trains, also by what was traced before `fit`."""

import copy
import pickle
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime.local.session import LocalSession
from tests.support.compare import flat
from tests.support.models import DENSE, even_data, ready
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
    model = ready(seeded(Counting), "adam", "mse", jit_compile=False)
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


def _by_functions(kernel, model):
    weights = tf.function(lambda: (kernel + 0.0, tf.reduce_sum(kernel.value)))
    outer = tf.function(lambda: weights())
    concrete = tf.function(lambda: kernel * 2.0).get_concrete_function()
    weights(), outer(), concrete()
    return lambda: [np.asarray(part) for part in (*weights(), *outer(), concrete())]


def _by_a_gradient(kernel, model):
    squares = tf.function(lambda: tf.reduce_sum(kernel.value * kernel.value))
    squares()

    def gradient():
        with tf.GradientTape() as tape:
            value = squares()
        return tape.gradient(value, kernel.value).numpy()

    return gradient


def _by_a_pipeline(kernel, model):
    numbers = tf.data.Dataset.range(100)
    sums = tf.data.Dataset.zip(numbers.map(lambda index: tf.reduce_sum(kernel.value)), numbers)
    open_ones = []

    def read():
        open_ones.extend([] if open_ones else [iter(sums)])
        return [float(next(iter(sums))[0]), float(next(open_ones[0])[0])]

    return read


def _taken_out(kernel, model):
    taken = kernel.value
    return taken.numpy


WAYS = {
    "functions": _by_functions, "a gradient": _by_a_gradient, "a pipeline": _by_a_pipeline, "taken out": _taken_out,
    "a pickled model": lambda kernel, model: lambda: flat(pickle.loads(pickle.dumps(model)).get_weights()),
}
"""Ways to read a weight which are made before `fit`, and used at each batch."""


def test_what_was_traced_or_taken_out_before_fit_sees_current_weights():
    def program(front, model):
        ways = {name: make(model.layers[-1].kernel, model) for name, make in WAYS.items()}
        seen: dict[str, list] = {name: [] for name in ways}
        fit(front, even_data(), callbacks=at_each_batch(
            lambda batch: [seen[name].append(read()) for name, read in ways.items()]
        ))
        assert all(str(values[0]) != str(values[1]) for values in seen.values())
        return {"seen": seen}

    assert_equal_training(DENSE, program)


def test_what_is_written_by_what_was_traced_or_taken_out_before_fit_counts():
    """A plain variable and one of Keras's, by functions; a slice; and TensorFlow's variable of one of Keras's."""
    def program(front, model):
        def halving(variable):
            return tf.function(lambda: variable.assign(0.5 * variable))

        functions = [halving(model.scale), halving(model.out.bias)]
        for halve in functions:
            halve()
        taken = model.out.kernel.value

        def write(batch):
            for halve in functions:
                halve()
            model.seen[0].assign(0.25)
            taken.assign(0.9 * taken)

        return fit(front, even_data(), callbacks=at_each_batch(write))

    assert_equal_training(counting, program)


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
