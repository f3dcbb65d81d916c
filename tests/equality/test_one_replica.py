"""One replica is plain Keras, bit by bit."""

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_equally_trained, assert_same
from tests.support.models import BY_NAME, DENSE, EXAMPLES, MODELS, TWICE, Data, ReferenceModel, dense_data
from tests.support.optimizers import OPTIMIZERS
from tests.support.training import assert_equal_training, train_distributed, train_plain


@pytest.fixture
def without_constant_folding() -> Iterator[None]:
    """TensorFlow's graph optimizer reorders products of constants by what else the graph holds."""
    before = tf.config.optimizer.get_experimental_options().get("constant_folding", True)
    tf.config.optimizer.set_experimental_options({"constant_folding": False})
    yield
    tf.config.optimizer.set_experimental_options({"constant_folding": before})


@pytest.mark.quick("adversarial")
@pytest.mark.parametrize("reference", TWICE, ids=str)
def test_every_model_that_applies_twice(reference: ReferenceModel, without_constant_folding: None):
    assert_equal_training(reference, replicas=1, tolerance=0.0)


@pytest.mark.quick("convolution-AllReduce-adam", "embedding-Parallax-adam")
@pytest.mark.parametrize("reference, builder, optimizer", [
    *((each, "AllReduce", "adam") for each in MODELS),
    *((BY_NAME["embedding"], builder, "adam") for builder in ("PS", "PSLoadBalancing", "Parallax")),
    *((DENSE, "AllReduce", each.name) for each in OPTIMIZERS if each.name != "adam"),
], ids=str)  # fmt: skip
def test_every_model_builder_and_optimizer(reference: ReferenceModel, builder: str, optimizer: str):
    assert_equal_training(reference, optimizer=optimizer, strategy=builder, replicas=1, tolerance=0.0)


def _table_of_mixed_precision() -> keras.Model:
    layers = [keras.layers.Embedding(30, 4, dtype="mixed_bfloat16"), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,), dtype="int32"), *layers])


def _rows_of_numbers() -> Data:
    random = np.random.default_rng(5)
    return Data(random.integers(-2, 30, (21, 3)).astype("int32"), random.normal(size=(21, 1)))


def test_a_table_of_mixed_precision():
    reference = ReferenceModel("mixed_table", _table_of_mixed_precision, _rows_of_numbers, lambda: {"loss": "mse"})
    assert_equal_training(reference, optimizer="adam", strategy="PS", replicas=1, tolerance=0.0)


@pytest.mark.quick("heads")
@pytest.mark.parametrize("reference", MODELS, ids=str)
def test_batches_that_are_all_alike(reference: ReferenceModel):
    """TensorFlow knows numbers to divide by in advance, and multiplies with their reciprocals.

    In what order it then multiplies constants, logged losses depend on what else the graph holds.
    """
    alike = {"replicas": 1, "batch_size": EXAMPLES // 2}
    expected, actual = train_plain(reference, **alike), train_distributed(reference, **alike)
    assert_same(expected.state, actual.state, tolerance=0.0)
    assert_equally_trained(expected, actual)


def _normalized(kind: type[keras.layers.Layer]) -> ReferenceModel:
    def build() -> keras.Model:
        layers = keras.layers
        return keras.Sequential([
            keras.Input((5,)), layers.Reshape((5, 1)), layers.LSTM(4, return_sequences=True, name="lstm"),
            kind(name="norm"), layers.GlobalAveragePooling1D(), layers.Dense(1, name="out"),
        ], name="normalized")

    return ReferenceModel("normalized", build, dense_data, DENSE.settings)


@pytest.mark.quick("7-LayerNormalization")
@pytest.mark.parametrize("kind", [keras.layers.LayerNormalization, keras.layers.UnitNormalization])
@pytest.mark.parametrize("size", [7, 24])
def test_sizes_that_no_power_of_two_divides(kind: type[keras.layers.Layer], size: int):
    """Means over sequences and features divide by sizes that are known once the batch's is."""
    reference, alike = _normalized(kind), {"replicas": 1, "data": dense_data(2 * size), "batch_size": size}
    assert_same(train_plain(reference, **alike).state, train_distributed(reference, **alike).state, tolerance=0.0)


def test_single_batches():
    """Keras knows the first size, as for data whose batches are all alike. It does not know the others."""
    reference = BY_NAME["convolution"]
    data = reference.data()

    def program(front, model):
        for size in (10, 10, 7, 11, 10):
            front.train_on_batch(data.x[:size], data.y[:size])

    assert_equal_training(reference, program, replicas=1, built=False, tolerance=0.0)
