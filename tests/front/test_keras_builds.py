"""When models are built, compiled and frozen, and what functions of a model's own become, as Keras's tests ask.

`docs/keras.md` lists the behaviours. What other files of this folder show is not repeated here.
"""

import warnings

import keras
import numpy as np
import pytest

from autodist_core.strategy import PS
from tests.support.compare import assert_same, named
from tests.support.models import DENSE, even_data, stacked
from tests.support.own_models import OneLayer
from tests.support.training import QUIET, assert_equal_training, distributed, seeded

layers = keras.layers
X, Y = even_data().x, even_data().y


BUILT = {
    "a call": lambda model: model(X),
    "plain predict": lambda model: model.predict(X, verbose=0),
    "a shape": lambda model: model.build((len(X), 5)),
    "an input of a declared size": None,
}


@pytest.mark.quick("a call")
@pytest.mark.parametrize("by", BUILT)
def test_a_sequential_model_takes_batches_of_all_sizes(by: str):
    """Its first batch, or its input layer, has a size. Keras takes batches of other sizes all the same."""

    def build():
        first = [keras.Input(batch_shape=(8, 5))] if BUILT[by] is None else []
        dense = layers.Dense(3, name="first"), layers.Dense(1, name="out")
        return stacked(*first, *dense, name="small", jit_compile=False)

    def program(front, model):
        if BUILT[by] is not None:
            BUILT[by](model)
        return front.fit(X, Y, batch_size=8, verbose=0, shuffle=False).history, front.predict(X, verbose=0)

    assert_equal_training(build, program)


def _compiled_again(front, model):
    outcomes = []

    def fitted():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The model does not have any trainable weights")
            outcomes.append(front.fit(X, Y, **QUIET).history)

    fitted()
    model.layers[0].trainable = False  # counts from the next compile on
    fitted()
    strategy = {} if front is model else {"strategy": PS()}
    front.compile(loss="mse", metrics=["mse"], jit_compile=False, **strategy)
    assert front is model or type(front.strategy) is PS
    fitted()
    model.trainable = False
    front.compile({"class_name": "Adam", "config": {"learning_rate": 0.1}}, "mse", jit_compile=False)
    fitted()
    model.trainable = True
    front.compile_from_config({"optimizer": "sgd", "loss": "mae"})
    fitted()
    front.compile(None, "mse", metrics=["mae"], jit_compile=False)
    return outcomes, front.evaluate(X, Y, verbose=0), front.test_on_batch(X, Y), front.predict(X, verbose=0)


def test_frozen_and_compiled_again():
    result = assert_equal_training(DENSE, _compiled_again).result
    assert "0/2/mse/0" in result and "0/1/mae/0" in result and "0/4/mae/0" not in result


@keras.saving.register_keras_serializable("tests")
class Noisy(layers.Layer):
    """Draws at all times."""

    def __init__(self, **options):
        super().__init__(**options)
        self.draws = keras.random.SeedGenerator(3)

    def call(self, x):
        return keras.random.dropout(x, 0.5, seed=self.draws)


def test_draws_of_predict_go_on():
    """From batch to batch and from call to call; one replica draws the numbers of one device."""
    outcomes = []
    for replicas in (0, 1, 2):
        model = seeded(lambda: keras.Sequential([keras.Input((5,)), Noisy()], name="noisy"))
        front = distributed(model, replicas=replicas) if replicas else model
        of_batches = [front.predict_on_batch(X) for _ in range(2)]
        outcomes.append([front.predict(X, batch_size=7, verbose=0), *of_batches])
        whole, first, second = outcomes[-1]
        assert (first != second).any() and ((whole[:7] == 0) != (whole[7:14] == 0)).any()
    for alone, one in zip(*outcomes[:2], strict=True):
        np.testing.assert_array_equal(alone, one)


# Functions of the model's own, in whose place the project's would run


class Replacing(OneLayer):
    """Changes what its train function returns."""

    def make_train_function(self, force=False):
        super().make_train_function(force)
        made = self.train_function
        self.train_function = lambda iterator: {**made(iterator), "added": 1.0}


def test_a_train_function_of_the_users_own_is_refused():
    said = r"^model 'own' has a {} of its own, and a step over several devices is made in its place\. Let train_step or"
    for model, attribute in ((Replacing(), "make_train_function"), (OneLayer(), "train_function")):
        model.compile("sgd", "mse", jit_compile=False)
        front = distributed(model)
        front.predict(X, verbose=0)
        if attribute == "train_function":
            model.train_function = lambda iterator: {"loss": len(next(iterator))}
        before = named(model.weights)
        for call in (front.fit, front.plan, front.train_on_batch):
            with pytest.raises(ValueError, match=said.format(attribute)):
                call(X, Y)
        assert_same(before, named(model.weights), tolerance=0.0)
        front.evaluate(X, Y, verbose=0)
        front.close()
