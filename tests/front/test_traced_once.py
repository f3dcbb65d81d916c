"""A step is traced once, for a large model's trace takes seconds; what Keras makes in it is made before."""

import keras
import numpy as np
import pytest

from tests.support.models import DENSE, ReferenceModel, dense_data
from tests.support.training import QUIET, assert_equal_training, distributed

KO = keras.optimizers


class Counting(keras.layers.Layer):
    """Counts how often Python runs through it."""

    calls = 0

    def call(self, x):
        self.calls += 1
        return x


def _functional(counting: Counting) -> keras.Model:
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(counting(inputs)))


def _sequential(counting: Counting) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), counting, keras.layers.Dense(1)])


@pytest.mark.quick("Adafactor-_sequential")
@pytest.mark.parametrize("build", [_functional, _sequential])
@pytest.mark.parametrize("optimizer", [KO.SGD, KO.RMSprop, KO.Adafactor, KO.Nadam])
@pytest.mark.oldest
def test_python_runs_through_a_model_once_for_each_of_its_steps(build, optimizer):
    counting = Counting()
    model = build(counting)
    x, y = np.ones((12, 3)), np.ones((12, 1))
    with distributed(model) as front:
        front.compile(optimizer(), "mse", metrics=["mae"], weighted_metrics=["mse"], jit_compile=False)
        counting.calls = 0
        front.fit(x, y, batch_size=5, epochs=2, verbose=0)
        assert counting.calls == 1
        front.evaluate(x, y, batch_size=5, verbose=0)
        assert counting.calls == 2
    assert list(front.history.history) == ["loss", "mae", "mse"]


class Lazy(keras.Model):
    """Is built before its layers are, which the first call builds."""

    def __init__(self):
        super().__init__(name="lazy")
        self.hidden = keras.layers.Dense(4, activation="tanh", name="hidden")
        self.out = keras.layers.Dense(1, name="out")

    def build(self, input_shape):
        self.hidden.build(input_shape)
        self.built = True

    def call(self, x):
        return self.out(self.hidden(x))


def _lazy() -> keras.Model:
    model = Lazy()
    model.build((None, 5))
    return model


def test_layers_that_the_first_call_builds_are_trained_too():
    assert_equal_training(ReferenceModel("lazy", _lazy, dense_data, lambda: {"loss": "mse"}), built=False)


class Activates(keras.callbacks.Callback):
    """Sets another activation in the middle of a fit, and has the step traced anew."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].activation = keras.activations.softplus
            self.model.make_train_function(force=True)


def test_a_step_is_traced_anew_where_keras_is_told_so():
    def program(front, model):
        data, results = dense_data(), []
        ways = {
            "tanh": lambda mode: None,
            "sigmoid": lambda mode: getattr(front, f"make_{mode}_function")(force=True),
            "exponential": lambda mode: setattr(model, f"{mode}_function", None),
        }
        for activation, again in ways.items():
            model.layers[0].activation = keras.activations.get(activation)
            for mode in ("train", "test", "predict"):
                again(mode)
            results.append(front.fit(data.x, data.y, verbose=0).history)
            results += [front.evaluate(data.x, data.y, verbose=0), front.predict(data.x, verbose=0)]
        return [*results, front.fit(data.x, data.y, epochs=2, callbacks=[Activates()], verbose=0).history]

    assert_equal_training(DENSE, program, optimizer="sgd")


def test_accuracy_is_chosen_by_the_shapes_of_the_trace():
    """Of any number of scores in a row there is one in each here, so that they are right or wrong: no classes."""
    ids = np.random.default_rng(5).integers(0, 9, (23, 1))

    def build() -> keras.Model:
        inputs = keras.Input((None,))
        scores = keras.layers.Dense(1, name="score")(keras.layers.Embedding(9, 4, name="items")(inputs))
        return keras.Model(inputs, keras.layers.Reshape((-1,), name="scores")(scores), name="scorer")

    def program(front, model):
        target = (ids[:, 0] > 4).astype("int64")
        return front.fit(ids, target, epochs=2, **QUIET).history

    settings = {"loss": "mse", "metrics": ["accuracy"]}
    expected = assert_equal_training(ReferenceModel("scorer", build, dense_data, lambda: settings), program)
    assert expected.result["accuracy/0"] > 0
