"""Models as Keras's own tests have them: structures, losses and metrics, own steps, models in models. Two replicas give
the numbers of one device.

`docs/keras.md` lists the behaviours. What other files of this folder show is not repeated here.
"""

import warnings
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.models import even_data, ready, stacked
from tests.support.own_models import ByHand, Measured, OneLayer, OwnSteps
from tests.support.training import QUIET, assert_equal_training

layers, ops = keras.layers, keras.ops
X, Y = even_data().x, even_data().y
WEIGHTS = np.linspace(0.2, 2.0, len(X))
THREE = np.hstack([Y, Y**2, X[:, :1]])
CASES: dict[str, tuple[Callable[[], keras.Model], Callable[[Any, Any], Any]]] = {}


def case(build: Callable[[], keras.Model], **settings):
    """A case of the table: what makes a model, `compile`'s arguments, and a program."""

    def compiled() -> keras.Model:
        return ready(build(), **{"optimizer": "sgd", "jit_compile": False, **settings})

    def add(program):
        CASES[program.__name__.strip("_")] = compiled, program
        return program

    return add


def everything(front, x, y, weights=None):
    """Train, evaluate and predict, and each for one batch."""
    of_batch = {"sample_weight": weights, "return_dict": True}
    return {
        "fit": front.fit(x, y, sample_weight=weights, epochs=2, **QUIET).history,
        "evaluate": front.evaluate(x, y, sample_weight=weights, verbose=0, batch_size=7),
        "by name": front.evaluate(x, y, sample_weight=weights, verbose=0, batch_size=7, return_dict=True),
        "predict": keras.tree.flatten(front.predict(x, verbose=0, batch_size=7)),
        "test_on_batch": front.test_on_batch(x, y, **of_batch),
        "train_on_batch": front.train_on_batch(x, y, **of_batch),
        "predict_on_batch": keras.tree.flatten(front.predict_on_batch(x)),
        "metrics": [metric.name for metric in front.metrics],
    }


def outputs(structure: Callable[[Any, Any, Any], Any]) -> Callable[[], keras.Model]:
    """A model with the outputs `one` and `three`, of one and three numbers, and `other`, in any structure."""

    def build():
        x = keras.Input((5,), name="x")
        one, three, other = (layers.Dense(size, name=name)(x) for name, size in
                             (("one", 1), ("three", 3), ("other", 1)))  # fmt: skip
        return keras.Model(x, structure(one, three, other), name="outputs")

    return build


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((5,), name="x"), layers.Dense(1, name="out")], name="dense")


# Structures of inputs, outputs, losses and weights


@case(
    outputs(lambda one, three, other: {"left": [one, three], "right": {"other": other}}),
    loss={"left": ["mse", "mae"], "right": {"other": "mse"}},
    metrics={"left": [None, "mae"], "right": {"other": "mse"}},
    loss_weights={"left": [1.0, 2.0], "right": {"other": 0.1}},
)  # fmt: skip
def nested_outputs(front, model):
    return everything(front, X, {"left": [Y, THREE], "right": {"other": np.cos(Y)}})


@case(
    outputs(lambda one, three, other: [one, three]), loss={"one": "mse", "three": "mae"},
    loss_weights={"one": 0.3, "three": 2.0}, metrics={"one": "mae"}, weighted_metrics=[["mse"], ["mae", "mse"]],
)  # fmt: skip
def a_list_of_outputs_by_name(front, model):
    return everything(front, X, [Y, THREE], [WEIGHTS, WEIGHTS[::-1].copy()])


@case(outputs(lambda one, three, other: [one, one, one]), loss=["mse", None, None])
def targets_for_one_of_three_outputs(front, model):
    return everything(front, X, Y)


@case(outputs(lambda one, three, other: {"one": one, "three": three}), loss={"one": "mse"}, metrics={"three": "mae"})
def a_missing_loss(front, model):
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        return everything(front, X, {"one": Y, "three": THREE})


@case(outputs(lambda one, three, other: {"one": one, "three": three}), loss="mse")
def weights_by_name_and_for_all_outputs(front, model):
    fit = partial(front.fit, X, {"one": Y, "three": THREE}, **QUIET)
    return [fit(sample_weight=each).history for each in ({"one": WEIGHTS, "three": WEIGHTS**2}, WEIGHTS)]


Pair = namedtuple("Pair", "left right")


class Nested(OneLayer):
    """Takes a tuple with a dict in it, in which a part is missing, and returns a named tuple."""

    def call(self, inputs):
        first, others = inputs
        missing, (last,) = others["missing"], others["list"]
        assert missing is None
        return Pair(self.dense(first + last), {"sum": ops.sum(last, axis=-1, keepdims=True)})


def _nested_batches():
    for start in range(0, len(X), 7):
        rows = slice(start, start + 7)
        yield (X[rows], {"missing": None, "list": (X[rows] * 2,)}), Pair(Y[rows], {"sum": Y[rows]})


@case(Nested, loss=Pair("mse", {"sum": "mae"}), metrics=Pair("mae", None))
def nested_inputs_of_a_subclass(front, model):
    (x, y), *_ = _nested_batches()
    predicted = front.predict_on_batch(x)
    return {
        "fit": front.fit(_nested_batches(), steps_per_epoch=3, verbose=0, shuffle=False).history,
        "predicted": [type(predicted).__name__, keras.tree.flatten(predicted)],
        "batch": front.train_on_batch(x, y),
    }


# Losses and metrics


def constant(y_true, y_pred):
    return 0


def constant_metric(y_true, y_pred):
    return 1.0


class Totals(keras.metrics.Metric):
    """Has several results."""

    def __init__(self):
        super().__init__(name="totals")
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_true - y_pred)))
        self.count.assign_add(ops.cast(ops.shape(y_true)[0], self.count.dtype))

    def result(self):
        return {"total": self.total, "mean": self.total / self.count}


@case(outputs(lambda one, three, other: [one, other]), loss=["mse", constant])
def a_loss_that_is_a_python_number(front, model):
    front.compile("sgd", ["mse", constant], metrics=[[constant_metric, Totals()], ["mae"]], jit_compile=False)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        return everything(front, X, [Y, Y])


class Doubled(keras.Model):
    """Does nothing to weights: it has none."""

    def call(self, x, training=False):
        return x * 2 if training else x * 3


@case(Doubled, loss=constant)
def a_model_without_weights(front, model):
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]], tf.float64)
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        histories = [front.fit(data, data, verbose=0).history for data in (X, ragged)]
    return histories, front.evaluate(X, X, verbose=0), front.predict(X, verbose=0), front.predict(ragged).to_list()


@case(Measured, loss="mse", metrics=["mae"], loss_weights=0.2)
def metrics_that_methods_update(front, model):
    result = everything(front, X, Y, WEIGHTS)
    return result, model.resets, front.get_metrics_result()


class Untrained(OneLayer):
    """A `compute_loss` without the argument `training`, and no targets."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return super().compute_loss(x, y, y_pred, sample_weight)

    def call(self, x):
        predicted = self.dense(x)
        self.add_loss(ops.mean(ops.square(predicted)))
        return predicted


@case(Untrained)
def no_targets_and_no_loss(front, model):
    source = tf.data.Dataset.from_tensor_slices(X).batch(7)
    fits = [front.fit(X, epochs=2, **QUIET), front.fit(source, verbose=0, shuffle=False),
            front.fit(X, validation_data=(X,), **QUIET)]  # fmt: skip
    batches = front.train_on_batch(X), front.test_on_batch(X)
    return [each.history for each in fits], front.evaluate(X, verbose=0), batches


# Steps and methods of the model's own


@case(OwnSteps, loss="mse", metrics=["mae"])
def own_steps(front, model):
    return everything(front, X, Y)


@case(ByHand, loss="mse")
def metrics_of_its_own(front, model):
    return everything(front, X, Y, WEIGHTS)


# Models in models, and loops in loops


def _trainer(name: str) -> keras.Model:
    dense = layers.Dense(5, name=f"{name}_dense")
    return stacked(keras.Input((5,)), dense, name=name, metrics=["mae"], jit_compile=False)


class Pretrained(OneLayer):
    """Fits another model before it fits itself, and trains a third in its own step."""

    def __init__(self):
        super().__init__()
        self.before, self.beside = _trainer("before"), _trainer("beside")

    def call(self, x):
        return self.dense(self.before(x))

    def fit(self, x, y, **options):
        self.before.fit(x, x, verbose=0, shuffle=False)
        return super().fit(x, y, **options)

    def train_step(self, data):
        beside = self.beside.train_step((data[0], data[0]))
        return {**super().train_step(data), "beside": beside["loss"]}


class Looping(keras.callbacks.Callback):
    """Trains, evaluates and predicts within the loop that calls it, and keeps what it sees."""

    def __init__(self, front, other):
        super().__init__()
        self.front, self.other, self.seen = front, other, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([self.model.get_metrics_result(), self.front.predict_on_batch(X)])
        if batch == 1:
            self.model.reset_metrics()

    def on_epoch_end(self, epoch, logs=None):
        self.seen += [self.model.fit(X, Y, verbose=0, shuffle=False).history, self.front.train_on_batch(X, Y)]
        self.seen += [self.model.evaluate(X, Y, verbose=0), self.other.fit(X, X, verbose=0, shuffle=False).history]


@case(Pretrained, loss="mse")
def loops_in_loops(front, model):
    looping = Looping(front, model.before)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Gradients do not exist")
        return front.fit(X, Y, epochs=2, callbacks=[looping], **QUIET).history, looping.seen


class Counting(OneLayer):
    """Counters that callbacks change, and no step reads."""

    def __init__(self):
        super().__init__()
        self.counters = [self.add_weight(shape=(), initializer="zeros", name=name, trainable=False)
                         for name in ("trained", "tested", "predicted")]  # fmt: skip


class Changing(keras.callbacks.Callback):
    """Changes counters and a weight at the end of each batch, and both weights at both ends of a training."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.counters[0].assign_add(1)

    def on_test_batch_end(self, batch, logs=None):
        self.model.counters[1].assign_add(1)
        self.model.dense.bias.assign_add([0.1])

    def on_predict_batch_end(self, batch, logs=None):
        self.model.counters[2].assign_add(1)
        self.model.dense.bias.assign_add([0.1])

    def on_train_begin(self, logs=None):
        self.model.dense.set_weights([0.5 * weight for weight in self.model.dense.get_weights()])

    on_train_end = on_train_begin


@case(Counting, loss="mse")
def callbacks_change_the_model(front, model):
    front.predict(X, verbose=0)
    histories = [front.fit(X, Y, epochs=2, validation_split=0.3, callbacks=[Changing()], **QUIET).history,
                 front.evaluate(X, Y, batch_size=7, callbacks=[Changing()], verbose=0),
                 front.predict(X, batch_size=7, callbacks=[Changing()], verbose=0)]  # fmt: skip
    assert [int(counter.numpy()) for counter in model.counters] == [4, 5, 3]
    return histories


class OfKeras2(OneLayer):
    """A step as it was written for Keras 2, with Keras 3's stand-ins for what that had."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compiled_loss(y, predicted, regularization_losses=self.losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.compiled_metrics.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


@case(OfKeras2, loss="mse", metrics=["mae"])
def steps_of_keras_2(front, model):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`model.compiled_")
        return front.fit(X, Y, epochs=2, **QUIET).history


@pytest.mark.filterwarnings("ignore:`build..` was called on layer 'own':UserWarning")
@pytest.mark.quick("nested_outputs", "own_steps")
@pytest.mark.parametrize("name", CASES)
def test_case(name: str):
    assert_equal_training(*CASES[name], optimizer="sgd")
