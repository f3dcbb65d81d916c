"""What a custom step returns, and terms of a loss whose rank is not known: one rule for each, and it is the plan's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_same
from tests.support.layers import Adds
from tests.support.models import DENSE, Data, ReferenceModel, dense_data, ready
from tests.support.steps import OwnStep, ReadsAMetric
from tests.support.training import assert_equal_training, distributed, seeded, train_distributed, train_plain


def _lengths(x):
    return tf.cast(tf.abs(x[:, 0]) * 10, tf.int32)


def _table(x):
    return tf.cast(tf.abs(x) * 10, tf.int32)


EXACT = {
    "largest": lambda x, model: tf.reduce_max(_lengths(x)),
    "smallest": lambda x, model: tf.reduce_min(_lengths(x)),
    "sum": lambda x, model: tf.reduce_sum(_lengths(x)),
    "difference": lambda x, model: tf.reduce_sum(_lengths(x)) - tf.size(x),
    "examples": lambda x, model: tf.shape(x)[0],
    "features": lambda x, model: tf.shape(x)[1],
    "nonzero": lambda x, model: tf.math.count_nonzero(_lengths(x) > 3),
    "any": lambda x, model: tf.reduce_any(_lengths(x) > 8),
    "all": lambda x, model: tf.reduce_all(_lengths(x) > 8),
    "any as a number": lambda x, model: tf.cast(tf.reduce_any(_lengths(x) > 8), tf.int32),
    "one more than the largest": lambda x, model: tf.reduce_max(_lengths(x)) + 1,
    "largest difference": lambda x, model: -tf.reduce_min(-_lengths(x)),
    "largest in rows": lambda x, model: tf.reduce_max(tf.reduce_sum(_table(x), 1)),
    "examples, from the end": lambda x, model: tf.shape(x)[-2],
    "examples, transposed": lambda x, model: tf.shape(tf.transpose(x))[1],
    "features, transposed": lambda x, model: tf.shape(tf.transpose(x))[0],
    "twice the entries": lambda x, model: tf.size(tf.concat([x, x], 0)),
    "twice the sum": lambda x, model: 2 * tf.reduce_sum(_lengths(x)),
    "sums of columns": lambda x, model: tf.reduce_sum(_table(x), 0),
    "constant": lambda x, model: tf.constant(3),
    "iterations": lambda x, model: model.optimizer.iterations + 1,
    "mean": lambda x, model: tf.reduce_mean(x),
}
UNKNOWN = {
    "place": lambda x, model: tf.argmax(x[:, 0]),
    "half": lambda x, model: tf.reduce_sum(_lengths(x)) // 2,
    "sum of the largest": lambda x, model: tf.reduce_sum(tf.reduce_max(_table(x), 0)),
    "largest sum": lambda x, model: tf.reduce_max(tf.reduce_sum(_table(x), 0)),
    "different": lambda x, model: tf.size(tf.unique(_lengths(x))[0]),
    "cut to an integer": lambda x, model: tf.cast(tf.reduce_sum(x), tf.int32),
    "one more example": lambda x, model: tf.shape(x)[0] + 1,
    "mean of integers": lambda x, model: tf.reduce_mean(_lengths(x)),
    "above": lambda x, model: tf.reduce_mean(x) > 0.0,
}


class Returns(OwnStep):
    """Returns integers and truth values beside its loss."""

    results = EXACT

    def train_step(self, data):
        more = {name: result(data[0], self) for name, result in self.results.items()}
        return {**super().train_step(data), **more}


class ReturnsUnknown(Returns):
    """Returns what no combination of the replicas' values gives."""

    results = UNKNOWN


class TakesAStep(keras.callbacks.Callback):
    """Takes one step as Keras's loop does before a fit begins, and keeps what it returns."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.data, self.logs = data, {}

    def on_train_begin(self, logs=None):
        self.model.make_train_function(force=True)
        batch = tf.constant(self.data.x), tf.constant(self.data.y)
        self.logs = {name: np.asarray(value) for name, value in self.model.train_function(iter([batch])).items()}


@pytest.mark.quick("2")
@pytest.mark.parametrize("rows", [2, 22])
def test_integers_and_truth_values_are_those_of_the_whole_batch(rows: int):
    data = dense_data().rows(slice(rows))
    returns = ReferenceModel("returns", Returns, dense_data, dict)

    def program(front, model):
        step = TakesAStep(data)
        front.fit(data.x, data.y, callbacks=[step], verbose=0)
        return step.logs

    expected = train_plain(returns, program, optimizer="sgd").result
    assert_same(expected, train_distributed(returns, program, optimizer="sgd", replicas=3).result)


def test_what_cannot_be_joined_is_named_in_the_plan():
    data = dense_data()
    for kind, names in ((Returns, ()), (ReturnsUnknown, UNKNOWN)):
        model = ready(seeded(kind), "sgd", jit_compile=False)
        with distributed(model) as front:
            notes = [line for line in front.plan(data.x, data.y).splitlines() if "note: result" in line]
        assert [note.split("'")[1] for note in notes] == sorted(names)
        assert [("added up" in note) for note in notes] == [name != "above" for name in sorted(names)]


@pytest.mark.parametrize("scalar", [True, False], ids=["one_number", "one_for_each_example"])
def test_a_term_of_unknown_rank_counts_as_what_it_is(scalar: bool):
    """TensorFlow does not know the rank while tracing."""

    def term(x):
        value = tf.reduce_mean(tf.square(x), axis=None if scalar else -1)
        return tf.compat.v1.placeholder_with_default(value, None)

    def build():
        dense = [keras.layers.Dense(4, activation="tanh", name="first"), keras.layers.Dense(1, name="second")]
        layers = [keras.Input((5,), name="x"), dense[0], Adds(term, name="adds"), dense[1]]
        return keras.Sequential(layers, name="unknown_rank")

    reference = ReferenceModel("unknown_rank", build, dense_data, DENSE.settings)
    assert_equal_training(reference, replicas=3, batch_size=7, epochs=2)


def test_a_metric_that_a_step_only_reads_has_its_value_on_every_replica():
    keras.utils.set_random_seed(7)
    x = np.random.default_rng(7).normal(size=(7, 3))
    model = ready(ReadsAMetric(), "sgd", "mse")
    model(x)
    model.seen.total.assign(2.5)
    dm = distributed(model, replicas=3, share_memory=False)
    # `evaluate` would begin by setting the metric to zero.
    model.reset_metrics = lambda: None
    found = dm.evaluate(x, np.zeros((7, 1)), batch_size=7, verbose=0, return_dict=True)["scaled"]
    dm.close()
    assert float(found) == pytest.approx(float(np.mean(model(x).numpy())) * 2.5, rel=1e-12)
