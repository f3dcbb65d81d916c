"""Metrics and terms of the loss of one's own, and Keras's layers for text: what the plan says of them.

Some maxima stay maxima.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from autodist_core import CaptureError, whole_batch
from tests.front.test_coupled import X, Y, _dense
from tests.support.models import ReferenceModel, dense_data
from tests.support.plans import as_name, headed, notes_of, operations
from tests.support.steps import Averages, HidesItsMetrics
from tests.support.training import assert_equal_training, distributed, seeded


class Keeps(keras.metrics.Metric):
    """Writes a variable by a function."""

    def __init__(self, write, name="keeps", dtype=None):
        super().__init__(name=name)
        self.write = write
        self.kept = self.add_variable((), "zeros", dtype=dtype, name="kept")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.write(self.kept, y_pred)

    def reset_state(self):
        self.kept.assign(ops.zeros_like(self.kept))

    def result(self):
        return ops.cast(self.kept, "float64")


def _behind(kept, p):
    return tf.concat([[kept.value], tf.reshape(p, [-1])], 0)


EXTREMES = {
    "largest behind each other": lambda kept, p: kept.assign(tf.reduce_max(_behind(kept, p))),
    "smallest behind each other": lambda kept, p: kept.assign(tf.reduce_min(_behind(kept, p))),
    "largest of two": lambda kept, p: kept.assign(tf.reduce_max(tf.stack([kept.value, tf.reduce_max(p)]))),
}


TRUTHS = {
    "any": lambda kept, p: kept.assign(tf.logical_or(kept.value, tf.reduce_any(p > 1.5))),
    "any of none": lambda kept, p: kept.assign(tf.logical_or(kept.value, tf.reduce_any(p > 99))),
    "all": lambda kept, p: kept.assign(tf.logical_and(tf.reduce_all(p > -99), kept.value)),
}


def _keeping(writes, dtype=None):
    """A metric for each function."""
    return [Keeps(write, as_name(name), dtype) for name, write in writes.items()]


def test_a_metric_that_keeps_an_extreme_is_exact():
    def metrics():
        return [*_keeping(EXTREMES), *_keeping(TRUTHS, "bool")]

    assert not notes_of(_dense(), X, Y, metrics=metrics())
    model = ReferenceModel("keeps", _dense(), dense_data, lambda: {"loss": "mse", "metrics": metrics()})
    assert_equal_training(model, optimizer="sgd", replicas=3)


def test_truth_values_that_would_be_added_up_are_refused():
    model = seeded(_dense())
    metrics = _keeping({"last": lambda kept, p: kept.assign(tf.reduce_any(p > 0.4))}, "bool")
    model.compile("sgd", "mse", metrics=metrics, jit_compile=False)
    said = "'metric/last/kept' is a variable of dtype bool with the aggregation 'sum', and such values cannot be added"
    with distributed(model) as front:
        for call in (front.plan, front.evaluate, front.fit):
            with pytest.raises(CaptureError, match=said):
                call(X, Y)


def _if_larger(kept, p):
    def write():
        kept.assign(tf.reduce_max(p))
        return tf.constant(0)

    tf.cond(tf.reduce_max(p) > kept.value, write, lambda: tf.constant(0))


def _unknown(kept, p):
    found = tf.numpy_function(lambda value: value.sum(), [p], p.dtype, False)
    kept.assign_add(tf.ensure_shape(found, ()))


SAID = {
    "square of the size": (lambda kept, p: kept.assign_add(tf.cast(tf.shape(p)[0] ** 2, p.dtype)), "not exact: .*Pow"),
    "different": (lambda kept, p: kept.assign_add(tf.cast(tf.size(tf.unique(p[:, 0])[0]), p.dtype)), "not exact: .*Si"),
    "sum behind each other": (lambda kept, p: kept.assign(tf.reduce_sum(_behind(kept, p))), "whether ConcatV2 .*"),
    "written in a conditional": (_if_larger, "not exact: .*Max"),
    "unknown": (_unknown, "whether PyFuncStateless .*"),
}


def test_one_note_names_the_metric():
    notes = notes_of(_dense(), X, Y, metrics=_keeping({name: write for name, (write, _) in SAID.items()}))
    assert len(notes) == len(SAID)
    for name, (_, said) in SAID.items():
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
    model = seeded(_dense())
    model.compile("sgd", "mse", metrics=[KeepsTwo()], jit_compile=False)
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
    (note,) = notes_of(_dense(), X, Y, metrics=[Averages("averages"), Weighs("weighs")])
    assert "metric 'averages'" in note
    assert note.endswith(
        "; for a mean over the examples, let the metric update a keras.metrics.Mean with the mean and "
        "sample_weight=tf.shape(y_pred)[0], the number of examples")
    model = ReferenceModel("weighs", _dense(), dense_data, lambda: {"loss": "mse", "metrics": [Weighs("weighs")]})
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
    model = seeded(_dense())
    model.compile("sgd", "mse", metrics=metrics, jit_compile=False)
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


def _text(**settings):
    layer = layers.TextVectorization(max_tokens=9, **settings)
    layer.adapt(["a b c", "d e f"])
    return layer


TEXTS = {
    "words": lambda x: layers.Flatten()(layers.Embedding(9, 3)(_text(output_sequence_length=4)(x))),
    "words of any number": lambda x: layers.GlobalMaxPooling1D()(layers.Embedding(9, 3)(_text()(x))),
    "letters": lambda x: layers.Flatten()(
        layers.Embedding(9, 3)(_text(split="character", output_sequence_length=4)(x))),
    "which words": lambda x: _text(output_mode="multi_hot")(x),
    "pairs of words": lambda x: _text(output_mode="tf_idf", ngrams=2)(x),
    "crossed": lambda x: layers.Embedding(8, 3)(layers.HashedCrossing(8)((x, x))),
    "crossed, encoded": lambda x: layers.HashedCrossing(8, output_mode="one_hot")((x, x)),
}  # fmt: skip


def test_text_layers_treat_examples_one_by_one():
    """A layer behind each of them subtracts the mean of the batch. That alone is named."""
    def build():
        x = keras.Input((), dtype="string")
        centred = [
            layers.Lambda(lambda t: t - tf.reduce_mean(t, 0), name=f"centred_{as_name(name)}")(make(x))
            for name, make in TEXTS.items()
        ]
        return keras.Model(x, layers.Dense(1)(layers.Concatenate()(centred)))

    notes = notes_of(build, tf.constant(["a b", "c", "d e f", "a a"] * 2), np.zeros((8, 1)))
    found = operations(notes, r"not exact: in layer 'centred_(?P<owner>\w+)', ")
    assert found == {as_name(name): "Mean" for name in TEXTS} and len(notes) == len(TEXTS)


def test_what_adds_up_the_words_of_texts_is_not_known():
    class Words(layers.Layer):
        def call(self, x):
            split = tf.strings.split(x)
            letters = tf.reduce_sum(tf.strings.length(split.values))
            return tf.cast(letters, "float64") * tf.ones((tf.shape(x)[0], 1), "float64")

        def compute_output_spec(self, x):
            return keras.KerasTensor((None, 1), "float64")

    def build():
        x = keras.Input((), dtype="string")
        return keras.Model(x, layers.Dense(1)(Words(name="words")(x)))

    notes = notes_of(build, tf.constant(["a b", "c", "d e f", "a a"] * 2), np.zeros((8, 1)))
    assert notes and "'words'" in notes[0]


# Terms of the loss that are no means

NO_MEAN = "makes a value of the whole batch that is no mean over its examples"


class Adds(layers.Layer):
    """Adds terms to the loss, and passes its input on."""

    def __init__(self, *terms, **named):
        super().__init__(**named)
        self.terms = terms

    def call(self, x):
        for term in self.terms:
            self.add_loss(term(x))
        return x


def _entropy(x):
    shares = ops.softmax(ops.mean(x, axis=0))
    return ops.sum(shares * ops.log(shares))


NO_MEAN_TERMS = {
    "Sqrt": lambda x: ops.sqrt(ops.mean(ops.square(x))), "Sum": _entropy,
    "Maximum": lambda x: ops.maximum(ops.mean(x), 2),
}  # fmt: skip
MEAN_TERMS = (
    lambda x: ops.mean(x**2), lambda x: ops.mean(x**2) * ops.ones(3), lambda x: ops.sum(x**2, axis=1),
    lambda x: ops.mean(tf.square(whole_batch(x))),
)


def test_an_added_term_that_is_no_mean_is_not_exact(caplog):
    model = seeded(lambda: keras.Sequential([
        keras.Input((5,)), layers.Dense(4, name="first"), Adds(*MEAN_TERMS, *NO_MEAN_TERMS.values()),
        Adds(lambda x: ops.sum(whole_batch(x), axis=-1)), layers.Dense(1, name="last"),
    ]))  # fmt: skip
    model.compile("sgd", "mse", jit_compile=False)
    with distributed(model) as front:
        notes = [line.strip() for line in front.plan(X, Y).splitlines() if "not exact" in line or "counts as" in line]
        table = front.verify(X, Y)
    for operation in NO_MEAN_TERMS:
        start = f"note: not exact: an add_loss term {NO_MEAN}, by {operation} ("
        (note,) = [line for line in notes if line.startswith(start)]
        assert note.removeprefix("note: ") in table and note.removeprefix("note: ") in caplog.text
    alike = "not exact: an add_loss term is the same on every replica, and is added up over the replicas: add its sum"
    (note,) = [line for line in notes if alike in line]
    assert note.removeprefix("note: ") in table and len(notes) == len(NO_MEAN_TERMS) + 1


class OwnLoss(keras.Sequential):
    """Makes the loss of the compiled one."""

    of = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return type(self).of(super().compute_loss(x, y, y_pred, sample_weight), y_pred)


@pytest.mark.parametrize(("operation", "function"), [
    ("Sqrt", lambda loss, p: ops.sqrt(loss)), ("Maximum", lambda loss, p: ops.maximum(loss, 0.5)),
    ("", lambda loss, p: 2 * loss + ops.mean(ops.abs(p))),
])  # fmt: skip
def test_a_compute_loss_that_makes_no_mean_is_not_exact(operation: str, function, caplog):
    own = type("Own", (OwnLoss,), {"of": staticmethod(function)})
    model = seeded(lambda: own([keras.Input((5,)), layers.Dense(1)]))
    model.compile("sgd", "mse", jit_compile=False)
    with distributed(model) as front:
        notes = [line.strip() for line in front.plan(X, Y).splitlines() if "not exact" in line or "counts as" in line]
        front.fit(X, Y, verbose=0)
        front.evaluate(X, Y, verbose=0)
        assert ("not exact" in front.verify(X, Y)) == bool(operation)
    logged = [message for message in caplog.messages if "not exact" in message]
    assert len(notes) == len(logged) == bool(operation)
    for text in (*notes, *logged):
        assert f"not exact: the step's loss {NO_MEAN}, by {operation} ({operation}), and a replica has only" in text
