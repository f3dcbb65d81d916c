"""Rows that replicas do not look up by their own examples' indices alone count as often as on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.models import EXAMPLES, Data, ReferenceModel
from tests.support.training import assert_equal_training, compiled, distributed

layers, ops = keras.layers, keras.ops
LENGTH, WORDS = 5, 9


class Lookup(layers.Layer):
    """A table of words, and what a subclass looks up besides or instead."""

    def __init__(self, name: str):
        super().__init__(name=name)
        self.words = layers.Embedding(WORDS, 4, name="words")
        self.places = layers.Embedding(LENGTH, 4, name="places")

    def build(self, shape):
        self.words.build(shape)
        self.places.build(shape)

    def compute_output_shape(self, shape):
        return (*shape, 4)


class Positions(Lookup):
    """As transformers have it: the same rows for every batch, added to each example's."""

    def call(self, ids):
        return self.words(ids) + self.places(ops.arange(ops.shape(ids)[-1]))


class InFunction(Lookup):
    """The same inside a function, of which the gradient is a call."""

    @tf.function
    def call(self, ids):
        return self.words(ids) + self.places(ops.arange(ops.shape(ids)[-1]))


class Repeated(Lookup):
    """Positions of every example: a row counts once for each."""

    def call(self, ids):
        return self.words(ids) + self.places(ops.arange(LENGTH, dtype=ids.dtype) + 0 * ids)


class Deduplicated(Lookup):
    """A row that occurs several times in a batch is looked up once."""

    def call(self, ids):
        rows, where = tf.unique(tf.reshape(ids, [-1]))
        return tf.reshape(tf.gather(self.words(rows), where), [-1, LENGTH, 4]) + self.places(tf.range(LENGTH))


class OneTable(Lookup):
    """One table for both."""

    def call(self, ids):
        return self.words(ids) + self.words(ops.arange(ops.shape(ids)[-1]))


def _model(kind: type[Lookup], length: int | None = LENGTH) -> keras.Model:
    ids = keras.Input((length,), dtype="int32", name="ids")
    hidden = layers.GlobalAveragePooling1D(name="pool")(layers.Activation("tanh")(kind(name="looked_up")(ids)))
    return keras.Model(ids, layers.Dense(1, name="out")(hidden), name="rows")


def _data() -> Data:
    random = np.random.default_rng(6)
    return Data(random.integers(0, WORDS, (EXAMPLES, LENGTH)).astype("int32"), random.normal(size=(EXAMPLES, 1)))


def _reference(name: str, kind: type[Lookup], length: int | None = LENGTH) -> ReferenceModel:
    return ReferenceModel(name, lambda: _model(kind, length), _data, lambda: {"loss": "mse"})


MODELS = {
    "positions": _reference("positions", Positions), "of any length": _reference("of any length", Positions, None),
    "in a function": _reference("in a function", InFunction), "repeated": _reference("repeated", Repeated),
    "deduplicated": _reference("deduplicated", Deduplicated),
}  # fmt: skip
WAYS = [("AllReduce", 2, False, "adam"), ("PSLoadBalancing", 3, False, "adagrad"), ("AllReduce", 3, True, "rmsprop"),
        ("UnevenPartitionedPS", 3, False, "adam"), ("Parallax", 2, False, "lion")]  # fmt: skip


# Every model in every other way, and every way with every other model.
COMBINATIONS = [
    (name, *way) for row, name in enumerate(MODELS) for column, way in enumerate(WAYS) if (row + column) % 2 == 0
]


@pytest.mark.quick(
    "of any length-PSLoadBalancing-3-False-adagrad", "in a function-AllReduce-3-True-rmsprop",
    "repeated-UnevenPartitionedPS-3-False-adam", "deduplicated-Parallax-2-False-lion",
)  # fmt: skip
@pytest.mark.parametrize("name, builder, replicas, share_memory, optimizer", COMBINATIONS)
def test_equals_one_device(name: str, builder: str, replicas: int, share_memory: bool, optimizer: str):
    """All of these optimizers but Lion square each row that arrives; they would see it once for every replica."""
    how = {"strategy": builder, "replicas": replicas, "share_memory": share_memory}
    assert_equal_training(MODELS[name], optimizer=optimizer, **how)


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
def test_one_table_for_both_is_refused_by_name():
    model, data = compiled(_reference("one table", OneTable)), _data()
    with distributed(model) as front, pytest.raises(CaptureError, match=r"rows of 'looked_up/words.*' are looked up"):
        front.fit(data.x, data.y, verbose=0)
