"""Variables and updates of unusual kinds: exact like all others, or refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import PartitionedPS
from tests.support.models import DENSE, ReferenceModel, even_data
from tests.support.training import assert_equal_training, compiled, distributed, fit


class Odd(keras.layers.Layer):
    """A number, a variable without elements, one without a gradient, an integer and a truth value."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.empty = self.add_weight(shape=(0, 3), initializer="zeros", name="empty")
        self.unused = self.add_weight(shape=(2, 2), initializer="ones", name="unused")
        self.fixed = self.add_weight(shape=(shape[-1],), initializer="ones", trainable=False, name="fixed")
        self.power = self.add_weight(shape=(), dtype="int32", initializer="ones", trainable=False, name="power")
        self.on = self.add_weight(shape=(), dtype="bool", initializer=lambda *_, **__: True, trainable=False, name="on")

    def call(self, x):
        power = keras.ops.cast(self.power, x.dtype)
        return keras.ops.where(self.on, x * self.scale * self.fixed * power, x) + keras.ops.sum(self.empty)


def _odd() -> keras.Model:
    inputs, twice = keras.Input((5,), name="x"), keras.layers.Dense(5, activation="tanh", name="twice")
    hidden = twice(Odd(name="odd")(twice(inputs)))
    return keras.Model(inputs, keras.layers.Dense(1, name="out")(hidden), name="odd_model")


ODD = ReferenceModel("odd_model", _odd, even_data, lambda: {"loss": "mse"})


@pytest.mark.quick("Mixed")
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize("builder", ["AllReduce", "PSLoadBalancing", "PartitionedPS", "PartitionedAR", "Mixed"])
def test_every_kind_of_variable(builder: str):
    assert_equal_training(ODD, optimizer="adamw", strategy=builder, replicas=3)


class Rounded(keras.optimizers.SGD):
    """Its update calls Python, of which nobody can say what it does."""

    def update_step(self, gradient, variable, learning_rate):
        rounded = tf.py_function(lambda value: np.round(value, 3), [gradient], gradient.dtype)
        rounded.set_shape(gradient.shape)
        super().update_step(rounded, variable, learning_rate)


ROUNDED = ReferenceModel(
    DENSE.name, DENSE.build, even_data, lambda: {"loss": "mse", "optimizer": Rounded(0.1, name="rounded")}
)


@pytest.mark.quick("PartitionedPS")
@pytest.mark.parametrize("builder", ["AllReduce", "PS", "PartitionedPS"])
def test_an_unknown_operation_in_the_update_sees_the_reduced_gradient(builder: str):
    assert_equal_training(ROUNDED, strategy=builder)


def test_an_unknown_operation_in_the_update_keeps_its_variable_whole():
    with distributed(compiled(ROUNDED), PartitionedPS()) as front:
        fit(front, even_data(), epochs=1)
        assert "first/kernel stays whole: EagerPyFunc (" in front.plan()


class Overwritten(keras.layers.Layer):
    """Scales its inputs by a variable that takes its gradient for a value."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.scale.overwrite_with_gradient = True

    def call(self, x):
        return x * self.scale


def _overwritten() -> keras.Model:
    layers = [keras.Input((5,), name="x"), Overwritten(name="scaled"), keras.layers.Dense(2, name="out")]
    return keras.Sequential(layers, name="overwritten")


@pytest.mark.quick("PartitionedPS")
@pytest.mark.parametrize("builder", ["AllReduce", "PS", "PartitionedPS"])
def test_a_variable_that_is_overwritten_gets_the_whole_batchs_gradient(builder: str):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, name="sgd"), 4.0, 2, name="scaled")
    reference = ReferenceModel(
        "overwritten", _overwritten, even_data,
        lambda: {"loss": "mse", "optimizer": type(optimizer).from_config(optimizer.get_config())},
    )
    assert_equal_training(reference, strategy=builder, replicas=3)


class Namesakes(keras.layers.Layer):
    """Two layers of one name and shape, and one whose name looks like the second's."""

    def __init__(self):
        super().__init__(name="all")
        self.parts = [keras.layers.Dense(5, activation="tanh", name=name) for name in ("part", "part", "part_1")]

    def build(self, shape):
        for part in self.parts:
            part.build(shape)

    def call(self, x):
        return sum((index + 1.0) * part(x) for index, part in enumerate(self.parts))


def _namesakes() -> keras.Model:
    return keras.Sequential([keras.Input((5,), name="x"), Namesakes(), keras.layers.Dense(1, name="out")], name="names")


@pytest.mark.quick("UnevenPartitionedPS-Adam")
@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, keras.optimizers.Adagrad])
@pytest.mark.parametrize("builder", ["PSLoadBalancing", "UnevenPartitionedPS", "Parallax"])
def test_slots_stay_with_their_variable_where_a_norm_ties_all_together(builder: str, optimizer: type):
    """Each slot's value depends on every gradient then, and its name says too little."""
    reference = ReferenceModel(
        "names", _namesakes, even_data,
        lambda: {"loss": "mse", "optimizer": optimizer(0.01, global_clipnorm=0.5, name="clipped")},
    )
    assert_equal_training(reference, strategy=builder, replicas=3)


class AlikeNames(keras.layers.Layer):
    """Two variables whose names differ in a letter that no node's name may have."""

    def build(self, shape):
        self.one = self.add_weight(shape=(shape[-1], 2), initializer="glorot_uniform", name="w ä")
        self.other = self.add_weight(shape=(shape[-1], 2), initializer="glorot_uniform", name="w ö")

    def call(self, x):
        return keras.ops.tanh(x @ self.one) * (x @ self.other)


def _alike() -> keras.Model:
    dense = keras.layers.Dense(1, name="out")
    return keras.Sequential([keras.Input((5,), name="x"), AlikeNames(name="alike"), dense], name="alike_names")


ALIKE = ReferenceModel("alike_names", _alike, even_data, lambda: {"loss": "mse"})


@pytest.mark.quick("PartitionedAR")
@pytest.mark.parametrize("builder", ["AllReduce", "PS", "PartitionedPS", "PartitionedAR"])
def test_variables_with_names_that_are_almost_alike(builder: str):
    assert_equal_training(ALIKE, strategy=builder, replicas=3)
