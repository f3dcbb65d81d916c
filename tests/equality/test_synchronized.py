"""`BatchNormalization(synchronized=True)` has the whole batch's statistics, so everything equals one device."""

import keras
import numpy as np
import pytest

from autodist_keras import synchronize_batch_norm
from tests.support.compare import assert_same, named
from tests.support.models import Data, ReferenceModel, dense_data
from tests.support.steps import OwnLoss
from tests.support.training import QUIET, assert_equal_training, distributed, seeded


class NoScaling(OwnLoss, keras.Sequential):
    """Its own step, which never tells the optimizer to scale the loss."""


def _model(base: type[keras.Sequential]) -> keras.Model:
    return base([
        keras.Input((dense_data().x.shape[1],)),
        keras.layers.Dense(6, use_bias=False, name="first"),
        keras.layers.BatchNormalization(synchronized=True, momentum=0.5, name="norm"),
        keras.layers.Activation("tanh"),
        keras.layers.Dense(dense_data().y.shape[1], name="out"),
    ], name="synchronized")


def _masked() -> keras.Model:
    """Of sequences of different lengths, some of which are empty."""
    return keras.Sequential([
        keras.Input((4, 3)),
        keras.layers.Masking(),
        keras.layers.BatchNormalization(synchronized=True, momentum=0.5, name="norm"),
        keras.layers.LSTM(3, name="lstm"),
        keras.layers.Dense(1, name="out"),
    ], name="masked")


def _sequences() -> Data:
    random = np.random.default_rng(4)
    x, y = random.normal(size=(22, 4, 3)), random.normal(size=(22, 1))
    for row, length in zip(x, random.integers(0, 5, 22), strict=True):
        row[length:] = 0.0
    return Data(x, y)


@pytest.mark.quick("3-False-Sequential")
@pytest.mark.parametrize("replicas, share_memory, base", [
    (3, False, keras.Sequential), (2, True, keras.Sequential), (2, True, NoScaling), (3, False, NoScaling),
])  # fmt: skip
def test_statistics_of_the_whole_batch(base: type[keras.Sequential], replicas: int, share_memory: bool):
    reference = ReferenceModel("synchronized", lambda: _model(base), dense_data, lambda: {"loss": "mse"})
    assert_equal_training(reference, replicas=replicas, share_memory=share_memory)


@pytest.mark.filterwarnings("ignore:Layer 'lstm' .* does not support masking")  # Keras 3.16: an RNN hands no mask on
@pytest.mark.quick("3-False")
@pytest.mark.parametrize("replicas, share_memory", [(1, False), (2, True), (3, False)])
def test_statistics_of_what_a_mask_leaves(replicas: int, share_memory: bool):
    reference = ReferenceModel("masked", _masked, _sequences, lambda: {"loss": "mse"})
    assert_equal_training(reference, replicas=replicas, share_memory=share_memory)


def _ready() -> keras.Model:
    """With batch normalization in a nested model, and behind it."""
    norm, inputs = keras.layers.BatchNormalization, keras.Input((5,))
    parts = [keras.Input((5,)), keras.layers.Dense(4, use_bias=False), norm(momentum=0.5, name="norm")]
    inside = keras.Sequential(parts, name="inside")
    model = keras.Model(inputs, keras.layers.Dense(5)(norm(momentum=0.5)(keras.ops.tanh(inside(inputs)))))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("traced", [False, True])
def test_a_ready_model_takes_the_statistics_of_the_whole_batch(traced: bool):
    x, y = np.random.default_rng(5).normal(size=(2, 22, 5))
    expected, model = seeded(_ready), seeded(_ready)
    weights = model.get_weights()
    expected.fit(x, y, **QUIET)
    with distributed(model) as front:
        assert "not exact" in str(front.plan(x, y))
        if traced:
            front.fit(x, y, **QUIET)
        assert synchronize_batch_norm(model) == 2
        model.set_weights(weights)
        front.fit(x, y, **QUIET)
        assert "not exact" not in str(front.plan(x, y))
    assert_same(named(expected.weights), named(model.weights))
    assert keras.models.clone_model(model).get_layer("inside").get_layer("norm").synchronized
