"""Metrics of one's own: what the plan says of them, and whose the operation is that it names.

Some maxima stay maxima.
"""

import re

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

from autodist_core import CaptureError
from tests.front.notes.models import Keeps, X, Y, centred, dense, holding, root, spread
from tests.support.models import ReferenceModel, dense_data, ready, stacked
from tests.support.plans import as_name, headed, notes_of
from tests.support.steps import Averages, HidesItsMetrics
from tests.support.training import assert_equal_training, distributed, seeded


def two_tower(y_true, y_pred):
    """The batch's other examples are each example's negatives."""
    scores = tf.matmul(y_pred[:, :2], y_pred[:, 2:], transpose_b=True)
    return keras.losses.sparse_categorical_crossentropy(tf.range(tf.shape(scores)[0]), scores, from_logits=True)


def _largest(kept, y, p):
    """Keeps the largest prediction, in a way that does not show."""
    largest = ops.max(p)
    kept.assign(ops.where(largest > kept, largest, kept))


FOUR = {
    "loss": (dense(4), {"loss": two_tower},
             "not exact: in loss 'two_tower', MatMul (compile_loss/two_tower/MatMul) pairs the examples of a batch "
             "with each other, and a replica has only its own"),
    "layer": (holding(centred, "centred"), {},
              "not exact: in layer 'centred', Mean (sequential_1/centred_1/Mean) gives each example a value of the "
              "whole batch, and a replica has only its own"),
    "metric": (dense(), {"metrics": lambda: [spread]},
               "not exact: in metric 'spread', Mean (Mean) gives each example a value of the whole batch, and a "
               "replica has only its own"),
    "maximum": (dense(), {"metrics": lambda: [Keeps(_largest, "peak")]},
                "not exact: metric 'peak': its variable 'metric/peak/kept' is added up over the replicas, and what is "
                "written to it is made by Max (Max)"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUR)
def test_the_operation_and_whose_it_is_are_named(case: str):
    build, settings, note = FOUR[case]
    settings = {key: value() if key == "metrics" else value for key, value in settings.items()}
    numbered = re.compile(r"(sequential|centred)(_\d+)?/")  # by TensorFlow, where a scope is opened again
    assert [numbered.sub(r"\1_1/", line) for line in notes_of(build, X, Y, **settings)] == [note]


def r2_of_each(y_true, y_pred):
    """The same as R2, as a value for each example."""
    errors = ops.mean(ops.square(y_true - y_pred), axis=-1)
    return 1 - errors / ops.mean(ops.square(y_true - ops.mean(y_true)))


def test_metrics_that_are_no_sums_over_examples():
    """The functions that make a mean are exact."""
    def mean(y, p):
        return ops.mean(ops.abs(y - p))

    def sum_over_size(y, p):
        return ops.sum(ops.abs(y - p)) / ops.cast(ops.shape(y)[0], "float64")

    names = ("r2_of_each", "root")
    notes = notes_of(dense(), X, Y, metrics=[mean, sum_over_size, r2_of_each, root])
    assert len(notes) == len(names)
    for name in names:
        assert any(re.match(f"not exact: .*metric {name!r}.*Mean", note) for note in notes)


def test_verify_prints_what_explains_other_weights():
    model = ready(seeded(holding(centred, "centred")), "sgd", "mse", jit_compile=False)
    with distributed(model) as front:
        table = front.verify(X, Y)
        assert "\n  note 1: not exact: in layer 'centred', Mean (" in table
        assert "0.0e+00" not in table.splitlines()[1], "the weights are the same, so there is nothing to explain"


class OnlyInInference(layers.Layer):
    """Subtracts the mean of the batch, but not in training."""

    def call(self, x, training=None):
        return x if training else centred(x)


def test_what_a_metric_mixes_and_what_only_inference_mixes_is_logged_once(caplog):
    late = OnlyInInference(name="late")
    model = seeded(lambda: stacked(keras.Input((5,)), late, layers.Dense(1), metrics=[spread], jit_compile=False))
    with distributed(model) as front:
        front.fit(X, Y, batch_size=8, verbose=0)
        (message,) = [message for message in caplog.messages if "not exact" in message]
        assert "sequential: not exact: in metric 'spread', Mean (Mean) gives each example a value of the" in message
        caplog.clear()
        front.fit(X, Y, batch_size=8, verbose=0)
        front.evaluate(X, Y, batch_size=8, verbose=0)
        front.predict(X, batch_size=8, verbose=0)
        front.evaluate(X, Y, batch_size=4, verbose=0)
    (message,) = [message for message in caplog.messages if "not exact" in message]
    assert ", in evaluate and validation: not exact: in layer 'late', Mean (" in message


def _behind(kept, p):
    return tf.concat([[kept.value], tf.reshape(p, [-1])], 0)


EXTREMES = {
    "largest behind each other": lambda kept, y, p: kept.assign(tf.reduce_max(_behind(kept, p))),
    "smallest behind each other": lambda kept, y, p: kept.assign(tf.reduce_min(_behind(kept, p))),
    "largest of two": lambda kept, y, p: kept.assign(tf.reduce_max(tf.stack([kept.value, tf.reduce_max(p)]))),
}


TRUTHS = {
    "any": lambda kept, y, p: kept.assign(tf.logical_or(kept.value, tf.reduce_any(p > 1.5))),
    "any of none": lambda kept, y, p: kept.assign(tf.logical_or(kept.value, tf.reduce_any(p > 99))),
    "all": lambda kept, y, p: kept.assign(tf.logical_and(tf.reduce_all(p > -99), kept.value)),
    "last": lambda kept, y, p: kept.assign(tf.reduce_any(p > 0.4)),
}
CHOSEN = {"chosen": lambda kept, y, p: kept.assign(tf.where(tf.reduce_any(p > 1.5), True, kept.value))}


def _class(y):
    return tf.cast(y > 0, tf.int32)


def _count_each(kept, y, p):
    def count(row):
        kept.value.assign_add(tf.ones(2, kept.dtype))
        return row

    tf.map_fn(count, p)


OF_TWO_NUMBERS = {
    "added": lambda kept, y, p: kept.value.scatter_nd_add(_class(y), p[:, 0]),
    "counted": _count_each,
    "scaled": lambda kept, y, p: kept.assign(tf.maximum(kept.value, tf.exp(2 * tf.reduce_max(p, 0) - 1))),
}


def _keeping(writes, **settings):
    """A metric for each function."""
    return [Keeps(write, as_name(name), **settings) for name, write in writes.items()]


def test_a_metric_that_adds_up_or_keeps_an_extreme_is_exact():
    def metrics():
        return [*_keeping(EXTREMES), *_keeping(TRUTHS, dtype="bool"), *_keeping(OF_TWO_NUMBERS, shape=(2,))]

    assert not notes_of(dense(), X, Y, metrics=metrics())
    model = ReferenceModel("keeps", dense(), dense_data, lambda: {"loss": "mse", "metrics": metrics()})
    assert_equal_training(model, optimizer="sgd", replicas=3)


def test_a_flag_is_true_if_it_is_on_any_replica_however_it_is_written():
    def metrics():
        return _keeping(CHOSEN, dtype="bool")

    (note,) = notes_of(dense(), X, Y, metrics=metrics())
    kept = "its variable 'metric/chosen/kept' is the largest of the replicas', and what is written to it is made by Any"
    assert note.startswith(f"not exact: metric 'chosen': {kept}"), "what a choice makes is not followed"
    model = ReferenceModel("flags", dense(), dense_data, lambda: {"loss": "mse", "metrics": metrics()})
    assert_equal_training(model, optimizer="sgd", replicas=3)


class AddsUpFlags(layers.Layer):
    """Declares that the replicas' truth values are added up."""

    def build(self, shape):
        self.seen = self.add_weight((), dtype="bool", initializer="zeros", trainable=False, aggregation="sum")

    def call(self, x):
        self.seen.assign(tf.reduce_any(x > 0.4))
        return x


def test_truth_values_of_a_layer_that_would_be_added_up_are_refused():
    model = seeded(lambda: stacked(keras.Input((5,)), AddsUpFlags(name="flags"), layers.Dense(1), jit_compile=False))
    said = "'flags/.*' is a variable of dtype bool with the aggregation 'sum', and such values cannot be added"
    with distributed(model) as front:
        for call in (front.plan, front.evaluate, front.fit):
            with pytest.raises(CaptureError, match=said):
                call(X, Y)


def _if_larger(kept, y, p):
    def write():
        kept.assign(tf.reduce_max(p))
        return tf.constant(0)

    tf.cond(tf.reduce_max(p) > kept.value, write, lambda: tf.constant(0))


def _unknown(kept, y, p):
    found = tf.numpy_function(lambda value: value.sum(), [p], p.dtype, False)
    kept.assign_add(tf.ensure_shape(found, ()))


SAID = {
    "batches": (lambda kept, y, p: kept.assign_add(1.0), "not exact: .*metric/batches/kept"),
    "square of the size": (
        lambda kept, y, p: kept.assign_add(tf.cast(tf.shape(p)[0] ** 2, p.dtype)), "not exact: .*Pow"),
    "different": (
        lambda kept, y, p: kept.assign_add(tf.cast(tf.size(tf.unique(p[:, 0])[0]), p.dtype)), "not exact: .*Si"),
    "sum behind each other": (lambda kept, y, p: kept.assign(tf.reduce_sum(_behind(kept, p))), ".*whether ConcatV2 .*"),
    "written in a conditional": (_if_larger, "not exact: .*Max"),
    "unknown": (_unknown, ".*whether PyFuncStateless .*"),
}  # fmt: skip
SAID_OF_TWO_NUMBERS = {
    "replaced": (lambda kept, y, p: kept.value.scatter_nd_update(_class(y), p[:, 0]), ".* by ResourceScatterNdUpdate "),
    "largest": (lambda kept, y, p: kept.value.scatter_max(tf.IndexedSlices(p[:, 0], _class(y)[:, 0])),
                ".* by ResourceScatterMax "),
    "both": (lambda kept, y, p: kept.value[:].assign(tf.stack([tf.reduce_sum(p), tf.reduce_max(p)])), ".* by Sum "),
    "less": (lambda kept, y, p: kept.assign(kept.value + tf.reduce_sum(p) - 0.0005), ".* by Sum "),
}  # fmt: skip


def test_one_note_names_the_metric():
    metrics = _keeping({name: write for name, (write, _) in SAID.items()})
    metrics += _keeping({name: write for name, (write, _) in SAID_OF_TWO_NUMBERS.items()}, shape=(2,))
    notes = notes_of(dense(), X, Y, metrics=metrics)
    cases = SAID | SAID_OF_TWO_NUMBERS
    assert len(notes) == len(cases)
    for name, (_, said) in cases.items():
        (note,) = [note for note in notes if f"metric '{as_name(name)}'" in note]
        assert re.match(said, note)


class KeepsTwo(keras.metrics.Metric):
    """Writes two variables, neither of which is a sum over examples."""

    def __init__(self):
        super().__init__(name="keeps_two")
        self.last = self.add_variable((), "zeros", name="last")
        self.batches = self.add_variable((), "zeros", name="batches")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.last.assign(tf.reduce_mean(y_pred))
        self.batches.assign_add(1.0)

    def result(self):
        return self.last + self.batches


def test_the_note_names_every_variable_of_the_metric_and_verify_shows_it():
    model = ready(seeded(dense()), "sgd", "mse", metrics=[KeepsTwo()], jit_compile=False)
    with distributed(model, replicas=3) as front:
        (note,) = [line for line in front.plan(X, Y).splitlines() if "not exact: " in line]
        *_, said, verdict = front.verify(X, Y, steps=2).splitlines()
    kept = "is added up over the replicas, and what is written to it is made by"
    assert re.fullmatch(
        rf"  note: not exact: metric 'keeps_two': its variable 'metric/keeps_two/last' {kept} Mean \(\S+\); "
        rf"its variable 'metric/keeps_two/batches' {kept} AddV2 \(\S+\)", note)
    assert said == note.replace("note:", "note 1:")
    assert verdict == (
        "verdict: equal to one device, up to rounding, in the 3 variables of the table; metrics and results are not "
        "compared: the notes above hold for them")


class Weighs(Averages):
    """Does what the note on `Averages` says."""

    def weigh(self, y_pred):
        return tf.shape(y_pred)[0]


def test_the_note_on_a_number_for_each_batch_says_how_it_counts_right():
    (note,) = notes_of(dense(), X, Y, metrics=[Averages("averages"), Weighs("weighs")])
    assert "metric 'averages'" in note
    assert note.endswith(
        "; for a mean over the examples, let the metric update a keras.metrics.Mean with the mean and "
        "sample_weight=tf.shape(y_pred)[0], the number of examples")
    model = ReferenceModel("weighs", dense(), dense_data, lambda: {"loss": "mse", "metrics": [Weighs("weighs")]})
    assert_equal_training(model, optimizer="sgd", replicas=3)


class Lift(keras.metrics.Mean):
    """Weights examples by what they have of the batch's mean weight: a value of the whole batch."""

    def __init__(self, name, weights):
        super().__init__(name=name)
        self.weights_of = weights

    def update_state(self, y_true, y_pred, sample_weight=None):
        weights = self.weights_of(y_pred[:, 0])
        return super().update_state(y_pred[:, 0], weights / ops.mean(weights))


def _of_no_third(values):
    """Refuses two examples, with which a trial begins and no replica does."""
    inverse = tf.linalg.inv([[tf.cast(tf.size(values) - 2, values.dtype)]])
    return tf.ones_like(values) * tf.reduce_sum(inverse) * tf.cast(tf.size(values) - 2, values.dtype)


def test_a_note_that_the_first_batch_refutes_says_so(caplog):
    metrics = [Lift("even", tf.ones_like), Lift("uneven", tf.exp), Lift("refuses", _of_no_third)]
    model = ready(seeded(dense()), "sgd", "mse", metrics=metrics, jit_compile=False)
    with distributed(model, replicas=2) as front:
        front.fit(X, Y, verbose=0)
        plans = [str(front.plan()), str(front.plan(X, Y))]
    for plan in plans:
        uneven, refuses, even = sorted((line for line in plan.splitlines() if "in metric" in line), key=len)
        assert even.startswith("  note: in metric 'even', Mean (")
        assert even.endswith("; in the first batch this changes no number of the metric")
        assert uneven.startswith("  note: not exact: in metric 'uneven', Mean (")
        assert refuses.startswith("  note: not exact: in metric 'refuses', ")
    assert "'uneven'" in caplog.text and "'even'" not in caplog.text


def test_a_metric_that_the_model_does_not_list_is_weighted_and_named(caplog):
    data = dense_data()

    def program(front, model):
        return [front.evaluate(data.x, data.y, batch_size=7, verbose=0, return_dict=True)]

    model = ReferenceModel("hides", HidesItsMetrics, dense_data, dict)
    assert_equal_training(model, program, optimizer="sgd", replicas=3, built=False)
    assert "not exact: metric 'own': its variable 'captured/own/total' is added up" in caplog.text
    assert "hidden" not in caplog.text


def test_hinge_is_a_mean_over_the_examples():
    kinds = {kind: kind for kind in ("hinge", "squared_hinge")}
    assert not notes_of(headed(kinds), X, dict.fromkeys(kinds, Y), loss=kinds, metrics=kinds)
