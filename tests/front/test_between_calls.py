"""What is changed between two calls counts in the next one; the state comes home once for calls that are one call."""

import contextlib
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_keras import DistributedModel
from tests.support.compare import assert_equally_trained, named
from tests.support.models import DENSE, even_data, stacked
from tests.support.training import (
    QUIET,
    assert_equal_training,
    compiled,
    distributed,
    fit,
    plain,
    seeded,
    train_distributed,
)


@tf.function(jit_compile=True)
def _halve(variable: tf.Variable):
    variable.assign(variable * 0.5)


def _rows(model, data):
    """Something that plain TensorFlow does to the variables, in place."""
    model.get_layer("first").kernel.value.scatter_nd_update([[0, 0]], tf.constant([0.25], data.x.dtype))


def _in_place(model, data):
    kernel = model.get_layer("first").kernel.value
    kernel.assign_sub(tf.ones_like(kernel))


def _trained_alone(model, data):
    """Keras trains on one device, in the memory that the variables have."""
    model.fit(data.x, data.y, batch_size=6, shuffle=False, verbose=0)


def _kept_view(model, data):
    """Somebody keeps the value from before the change, as an array in the variable's memory."""
    kernel = model.get_layer("first").kernel
    before = np.asarray(memoryview(kernel.value.value()))
    kernel.assign(kernel + 0.5)
    kernel.assign(before)
    kernel.value.assign_add(tf.ones_like(kernel.value))


CHANGES = {
    "nothing": lambda model, data: None,
    "assigned": lambda model, data: model.get_layer("out").bias.assign([0.5]),
    "in_place": _in_place,
    "rows": _rows,
    "all": lambda model, data: model.set_weights([1.25 * weight for weight in model.get_weights()]),
    "optimizer": lambda model, data: model.optimizer.variables[-1].assign(model.optimizer.variables[-1] * 3),
    "alone": _trained_alone,
    "view": _kept_view,
    "xla": lambda model, data: _halve(model.get_layer("first").kernel.value),
}


def test_every_change_counts():
    """One step at a time, a change after each, and each change twice: TensorFlow may take new memory once only."""
    def program(front, model):
        data, seen = even_data(), []
        for change in CHANGES.values():
            for _ in range(2):
                seen.append(front.train_on_batch(data.x, data.y))
                change(model, data)
        seen.append(front.evaluate(data.x, data.y, verbose=0))
        return seen

    assert_equal_training(DENSE, program, strategy="PS")


def _small():
    layers = [keras.layers.Dense(4, "tanh", name="hidden"), keras.layers.Dense(1, name="head")]
    return stacked(keras.Input((6,)), *layers, name="small")


def _another_head(model):
    model.pop()
    model.add(keras.layers.Dense(1, name="head"))


@pytest.mark.quick("another layer")
@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
@pytest.mark.parametrize(
    "change", [_another_head, lambda model: model.quantize("int8")], ids=["another layer", "quantized"]
)
def test_a_variable_that_another_one_of_its_name_replaces_counts(change):
    """Keras traces `predict` and `evaluate` when they are first called, and finds the new variable."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(22, 6)), random.normal(size=(22, 1))

    def program(front, model):
        front.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        change(model)
        return [*front.predict(x, verbose=0).ravel(), front.evaluate(x, y, verbose=0)]

    expected = assert_equal_training(_small, program, tolerance=1e-9)
    assert np.std(list(expected.result.values())) > 0.0


class _Function(keras.layers.Layer):
    """A layer whose call is a function of TensorFlow."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(6, 6), name="kernel")

    @tf.function
    def call(self, x):
        return tf.tanh(x @ tf.convert_to_tensor(self.kernel))


@pytest.mark.parametrize("saved", [False, True], ids=["function", "SavedModel"])
def test_a_function_in_a_layer_is_evaluated_after_it_was_trained(tmp_path, saved):
    """To take its gradient adds results to the function's graph, which an evaluation calls then."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(22, 6)), random.normal(size=(22, 1))
    if saved:
        exported = seeded(lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, "tanh")]))
        exported.export(tmp_path, verbose=False)

    def build():
        # The variables of a SavedModel have TensorFlow's names.
        layer = keras.layers.TFSMLayer(tmp_path, call_endpoint="serve", trainable=True) if saved else _Function()
        return stacked(keras.Input((6,)), layer, keras.layers.Dense(1), metrics=["mae"])

    def program(front, model):
        history = front.fit(x, y, batch_size=8, shuffle=False, verbose=0, validation_data=(x, y)).history
        return history, front.predict(x, verbose=0)

    assert_equal_training(build, program)


def _other() -> keras.optimizers.Optimizer:
    return keras.optimizers.RMSprop(0.02, name="other")


def _plain(front, model):
    results = [fit(front)]
    model.optimizer = _other()
    # Plain Keras goes on with the function that it traced, and with the old optimizer, unless it is told.
    model.make_train_function(force=True)
    return [*results, fit(front)]


def test_an_optimizer_that_is_set_between_two_fits_trains_in_the_second():
    for where in ("front", "model"):
        def program(front, model, where=where):
            results = [fit(front)]
            {"front": front, "model": model}[where].optimizer = _other()
            return [*results, fit(front)]

        assert_equally_trained(plain(DENSE, _plain), train_distributed(DENSE, program))


class Sets(keras.callbacks.Callback):
    """Sets another optimizer in the middle of a fit."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer = _other()


def test_an_optimizer_that_is_set_within_a_fit_trains_from_the_next_call_on():
    def program(front, model):
        results = [fit(front, callbacks=[Sets()])]
        assert model.optimizer.name == "other"
        return [*results, fit(front)]

    assert_equally_trained(plain(DENSE, _plain), train_distributed(DENSE, program))


def _one_call(front):
    return front.one_call() if isinstance(front, DistributedModel) else contextlib.nullcontext()


def _looks_and_changes(front, model):
    data, seen = even_data(), []
    kernel = model.get_layer("first").kernel
    for _ in range(2):
        with _one_call(front):
            for step in range(4):
                rows = slice(6 * step, 6 * step + 6)
                seen.append(front.train_on_batch(data.x[rows], data.y[rows]))
                if step == 1:
                    seen.append([weight.copy() for weight in model.get_weights()])
                    kernel.assign(kernel * 0.5)
            seen.append(front.test_on_batch(data.x, data.y))
            seen.append(front.fit(data.x, data.y, epochs=1, **QUIET).history)
            seen.append(model.optimizer.iterations.numpy())
        seen.append(named(model.weights))
        kernel.assign(kernel * 1.5)
    return seen


def test_looks_and_changes_inside_and_between_blocks():
    assert_equal_training(DENSE, _looks_and_changes, replicas=2, strategy="PS")


def test_the_state_comes_home_once(caplog):
    def program(front, model):
        data = even_data()
        with front.one_call():
            for _ in range(3):
                front.train_on_batch(data.x, data.y)
            assert not [line for line in caplog.messages if "bringing the state home" in line]

    with caplog.at_level(logging.DEBUG, "autodist"):
        train_distributed(DENSE, program)
    assert len([line for line in caplog.messages if "bringing the state home" in line]) == 1


def test_a_batch_that_is_refused_leaves_the_block_as_it_was():
    def program(front, model):
        data = even_data()
        with _one_call(front):
            front.train_on_batch(data.x, data.y)
            if isinstance(front, DistributedModel):
                with pytest.raises(ValueError, match="shape"):
                    front.train_on_batch(data.x[:, :2], data.y)
            front.train_on_batch(data.x, data.y)

    assert_equal_training(DENSE, program, strategy="PS")


def test_settings_and_compile_wait_for_the_end_of_the_block():
    front = distributed(compiled(DENSE))
    with front.one_call():
        for refused in (front.close, lambda: front.compile("sgd", "mse"), lambda: setattr(front, "strategy", "PS")):
            with pytest.raises(SessionError, match="this DistributedModel is training: compile, close or change its"):
                refused()
    front.close()
