"""Steps whose examples depend on each other: the plan names the operation and whose it is, and `verify` explains."""

import re

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.support.plans import Does, as_name, headed, notes_of, numbers, operations, side_by_side
from tests.support.training import distributed, seeded

X, Y = numbers(5), numbers(1)


def _with(function, name="odd"):
    def build():
        dense = layers.Dense
        return keras.Sequential(
            [keras.Input((5,)), dense(4, activation="tanh", name="first"), Does(function, name), dense(1, name="last")]
        )

    return build


def _centred(x):
    return x - ops.mean(x, axis=0)


def two_tower(y_true, y_pred):
    """The batch's other examples are each example's negatives."""
    scores = tf.matmul(y_pred[:, :2], y_pred[:, 2:], transpose_b=True)
    return keras.losses.sparse_categorical_crossentropy(tf.range(tf.shape(scores)[0]), scores, from_logits=True)


def r2(y_true, y_pred):
    """One number of the whole batch."""
    return 1 - ops.sum(ops.square(y_true - y_pred)) / ops.sum(ops.square(y_true - ops.mean(y_true)))


def r2_of_each(y_true, y_pred):
    """The same as a value for each example."""
    errors = ops.mean(ops.square(y_true - y_pred), axis=-1)
    return 1 - errors / ops.mean(ops.square(y_true - ops.mean(y_true)))


def root(y_true, y_pred):
    """A root of a mean, which is no mean."""
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


class Peak(keras.metrics.Metric):
    """Keeps the largest prediction, in a way that does not show."""

    def __init__(self, name="peak"):
        super().__init__(name=name)
        self.kept = self.add_variable((), "zeros", name="kept")

    def update_state(self, y_true, y_pred, sample_weight=None):
        largest = ops.max(y_pred)
        self.kept.assign(ops.where(largest > self.kept, largest, self.kept))

    def result(self):
        return self.kept


class Batches(keras.metrics.Metric):
    """Counts batches."""

    def __init__(self, name="batches"):
        super().__init__(name=name)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(1.0)

    def result(self):
        return self.count


def _dense(units=1):
    return lambda: keras.Sequential([keras.Input((5,)), layers.Dense(units, name="out")])


FOUR = {
    "loss": (_dense(4), {"loss": two_tower},
             "not exact: in loss 'two_tower', MatMul (compile_loss/two_tower/MatMul) pairs the examples of a batch "
             "with each other, and a replica has only its own"),
    "layer": (_with(_centred, "centred"), {},
              "not exact: in layer 'centred', Mean (sequential_1/centred_1/Mean) gives each example a value of the "
              "whole batch, and a replica has only its own"),
    "metric": (_dense(), {"metrics": [r2]},
               "not exact: in metric 'r2', Mean (Mean) gives each example a value of the whole batch, and a replica "
               "has only its own; its variable 'metric/mean_metric_wrapper/total' is added up over the replicas, and "
               "what is written to it is made by Sum (Sum_2)"),
    "maximum": (_dense(), {"metrics": [Peak]},
                "not exact: metric 'peak': its variable 'metric/peak/kept' is added up over the replicas, and what is "
                "written to it is made by Max (Max)"),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUR)
def test_the_operation_and_whose_it_is_are_named(case: str):
    build, settings, note = FOUR[case]
    settings = {key: [each() if isinstance(each, type) else each for each in value] if key == "metrics" else value
                for key, value in settings.items()}  # fmt: skip
    assert [re.sub(r"sequential_\d+", "sequential_1", line) for line in notes_of(build, X, Y, **settings)] == [note]


def test_metrics_that_are_no_sums_over_examples():
    """The functions that make a mean are exact."""
    def mean(y, p):
        return ops.mean(ops.abs(y - p))

    def sum_over_size(y, p):
        return ops.sum(ops.abs(y - p)) / ops.cast(ops.shape(y)[0], "float64")

    said = {"r2_of_each": "Mean", "root": "Mean", "batches": "metric/batches/count"}
    notes = notes_of(_dense(), X, Y, metrics=[mean, sum_over_size, r2_of_each, root, Batches()])
    assert len(notes) == len(said)
    for name, operation in said.items():
        (note,) = [note for note in notes if f"metric {name!r}" in note]
        assert note.startswith("not exact: ") and operation in note


MIXING = {
    "transpose, softmax": (lambda x: ops.transpose(ops.softmax(ops.transpose(x))), "Softmax"),
    "roll": (lambda x: ops.roll(x, 1, axis=0), "Roll"),
    "sort": (lambda x: ops.sort(x, axis=0), "TopKV2"),
    "top_k": (lambda x: x * ops.sum(ops.top_k(ops.transpose(x), 2)[0]), "TopKV2"),
    "flip": (lambda x: ops.flip(x, axis=0), "ReverseV2"),
    "reverse": (lambda x: x[::-1], "StridedSlice"),
    "cumsum": (lambda x: ops.cumsum(x, axis=0), "Cumsum"),
    "gather": (lambda x: x + ops.take(x, ops.array([0]), axis=0), "GatherV2"),
    "first": (lambda x: x - x[:1], "StridedSlice"),
    "maximum": (lambda x: x / ops.max(x), "Max"),
    "gram": (lambda x: ops.matmul(x, ops.matmul(ops.transpose(x), x)), "MatMul"),
    "attention": (lambda x: ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x), "MatMul"),
    "einsum": (lambda x: x + ops.einsum("bi,bj->ij", x, x)[0], "Einsum"),
    "pairs": (lambda x: ops.reshape(ops.repeat(ops.mean(ops.reshape(x, (-1, 2, 4)), axis=1), 2, axis=0), (-1, 4)),
              "Mean"),
    "segments": (lambda x: tf.gather(tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0] > 0, tf.int32), 2),
                                     tf.cast(x[:, 0] > 0, tf.int32)), "UnsortedSegmentSum"),
    "scan": (lambda x: tf.scan(lambda before, row: before + row, x), "TensorListGetItem"),
    "condition": (lambda x: tf.cond(tf.reduce_mean(x) > 0, lambda: x, lambda: -x), "Mean"),
    "loop": (lambda x: tf.while_loop(lambda rest: tf.reduce_sum(rest**2) > 1, lambda rest: [rest / 2], [x])[0], "Sum"),
    "loop of two": (lambda x: tf.while_loop(
        lambda rest, largest: largest > 0.1, lambda rest, _: (rest / 2, tf.reduce_max(rest)), [x, tf.reduce_max(x)])[0],
        "Max"),
    "function": (lambda x: tf.function(lambda rows: rows - tf.reduce_max(rows))(x), "Max"),
}  # fmt: skip


def test_verify_prints_what_explains_other_weights():
    model = seeded(_with(_centred, "centred"))
    model.compile("sgd", "mse", jit_compile=False)
    with distributed(model) as front:
        table = front.verify(X, Y)
        assert "\n  note 1: not exact: in layer 'centred', Mean (" in table
        assert "0.0e+00" not in table.splitlines()[1], "the weights are the same, so there is nothing to explain"


def _unknown(y_true, y_pred):
    """A loss of which nothing shows how it counts."""
    factor = tf.numpy_function(lambda value: value.std(), [y_true], y_true.dtype, False)
    return tf.reduce_mean(tf.square(y_true - y_pred)) * tf.ensure_shape(factor, ())


def test_a_metric_explains_no_other_weights():
    model = seeded(_dense(4))
    model.compile("sgd", _unknown, metrics=[r2], jit_compile=False)
    with distributed(model) as front, pytest.raises(ValueError, match="differs from one device in out/kernel"):
        front.verify(X, Y)


def test_one_replica_has_the_whole_batch():
    assert not notes_of(_with(_centred), X, Y, replicas=1)


def test_what_nothing_is_made_of_is_not_named():
    def silent(x):
        ops.sort(x, axis=0)
        return x

    assert not notes_of(_with(silent), X, Y)


def _odd(x):
    found = tf.numpy_function(lambda value: value - value.mean(axis=0), [tf.stop_gradient(x)], x.dtype, False)
    found.set_shape(x.shape)
    return x + found


def test_an_unknown_operation_is_named_as_such_and_verify_quotes_it():
    (note,) = notes_of(_with(_odd), X, Y)
    assert re.fullmatch(
        r"whether PyFuncStateless \(.*\) in layer 'odd' mixes the examples of a batch is not known: verify\(x, y\) "
        "compares with one device", note
    )
    model = seeded(_with(_odd))
    model.compile("sgd", "mse", jit_compile=False)
    with distributed(model) as front, pytest.raises(ValueError, match=r"says: whether PyFuncStateless .* not"):
        front.verify(X, Y)


def _ids(x):
    return tf.cast(x[:, 0] > 0, tf.int32)


def _shifted(x):
    count = ops.shape(x)[0]
    return x - ops.take(x, (ops.arange(count) + 1) % count, axis=0)


def _swapped(x):
    """A cumulative sum along the batch, behind a permutation that the graph computes."""
    last = tf.rank(x) - 1
    back_to_front = tf.concat([[last], tf.range(1, last), [0]], 0)
    return tf.transpose(tf.cumsum(tf.transpose(x, back_to_front), axis=1), back_to_front)


def _size(x):
    return ops.cast(ops.shape(x)[0], x.dtype)


def _beside_the_size(x):
    return tf.concat([x, tf.fill([tf.shape(x)[0], 1], _size(x))], 1)


def _cubes(function):
    return lambda x: ops.reshape(function(ops.reshape(x, (-1, 2, 2))), (-1, 4))


SILENT = {
    "softmax": (lambda x: ops.softmax(x, axis=0), "Softmax"),
    "softmax of tensorflow": (lambda x: tf.nn.softmax(x, axis=0), "Softmax"),
    "layer of softmax": (lambda x: layers.Softmax(axis=0)(x), "Softmax"),
    "softmax of rank 3": (_cubes(lambda x: ops.softmax(x, axis=0)), "Softmax"),
    "log_softmax": (lambda x: ops.log_softmax(x, axis=0), "LogSoftmax"),
    "log_softmax of rank 3": (_cubes(lambda x: ops.log_softmax(x, axis=0)), "LogSoftmax"),
    "permutation of the graph": (_swapped, "Cumsum"),
    "shifted negatives": (_shifted, "GatherV2"),
    "reversed positions": (lambda x: tf.gather(x, tf.shape(x)[0] - 1 - tf.range(tf.shape(x)[0])), "GatherV2"),
    "divided by the size": (lambda x: x / _size(x), "RealDiv"),
    "divided by the size's root": (lambda x: x / ops.sqrt(_size(x)), "Sqrt"),
    "size added": (lambda x: x + _size(x), "AddV2"),
    "at most the size": (lambda x: ops.minimum(x, _size(x)), "Minimum"),
    "larger than the size": (lambda x: tf.where(x > _size(x), x, -x), "Greater"),
    "size divided": (lambda x: _size(x) / (2 + x), "RealDiv"),
    "beside the size": (_beside_the_size, "Fill"),
    "times the size in a loop": (lambda x: tf.map_fn(lambda row: row * _size(x), x), "Mul"),
    "the size chosen": (lambda x: tf.where(x > 0, _size(x), x), "SelectV2"),
    "number of different ids": (lambda x: x * tf.cast(tf.size(tf.unique(_ids(x))[0]), x.dtype), "Size"),
}  # fmt: skip


def test_what_a_layer_does_along_the_batch_axis_and_with_positions_sizes_and_permutations():
    cases = {as_name(name): case for name, case in {**MIXING, **SILENT}.items()}
    notes = notes_of(side_by_side({name: function for name, (function, _) in cases.items()}), X, Y)
    found = operations(notes, r"not exact: in layer '(case_)?(?P<owner>\w+)', ")
    assert found == {name: operation for name, (_, operation) in cases.items()} and len(notes) == len(found)


def test_a_softmax_along_the_batch_in_a_loss_with_a_value_per_row():
    def listnet(y_true, y_pred):
        return -ops.sum(ops.softmax(y_true, axis=0) * ops.log_softmax(y_pred, axis=0), axis=-1)

    (note,) = notes_of(_dense(), X, Y, loss=listnet)
    assert note.startswith("not exact: in loss 'listnet', Softmax (") and note.endswith("and 1 more such")


def test_a_permutation_that_is_not_known_is_named_as_such():
    keys = tf.Variable([0.0, 1.0], trainable=False)

    def moved(x):
        order = tf.argsort(keys)
        back = tf.transpose(tf.transpose(x, order), order)
        return tf.ensure_shape(back, x.shape)

    notes = notes_of(_with(moved), X, Y)
    assert len(notes) == 1 and re.match(r"whether Transpose \(.*\) in layer 'odd' mixes the examples", notes[0])


def _error(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


def weighted_mean(y_true, y_pred):
    weights = ops.abs(y_true[:, 0]) + 1.0
    return ops.sum(weights * _error(y_true, y_pred)) / ops.sum(weights)


def masked_mean(y_true, y_pred):
    return tf.reduce_mean(tf.boolean_mask(_error(y_true, y_pred), y_true[:, 0] > 0))


def barlow(y_true, y_pred):
    size = ops.cast(ops.shape(y_pred)[0], y_pred.dtype)
    correlation = ops.matmul(ops.transpose(y_pred), y_pred) / size
    return ops.sum(ops.square(correlation - ops.eye(4, dtype=y_pred.dtype)))


def over_size(y_true, y_pred):
    return _error(y_true, y_pred) / ops.cast(ops.shape(y_pred)[0], y_pred.dtype)


def of_columns(y_true, y_pred):
    """A value for each column, which Keras takes the mean of."""
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred), axis=0))


NO_MEANS = {
    root: "Mean", weighted_mean: "Sum", masked_mean: "Mean", barlow: "MatMul", over_size: "RealDiv", of_columns: "Mean"
}


def _with_losses(losses):
    """A model with a head for each loss."""
    model = seeded(headed(losses, 4))
    model.compile("sgd", losses, jit_compile=False)
    return model, dict.fromkeys(losses, Y)


def test_a_loss_that_is_no_mean_is_not_exact_and_verify_accepts_it():
    model, targets = _with_losses({loss.__name__: loss for loss in NO_MEANS})
    with distributed(model) as front:
        notes = [line for line in front.plan(X, targets).splitlines() if "loss" in line]
        table = front.verify(X, targets)
    assert len(notes) == len(NO_MEANS)
    for loss, operation in NO_MEANS.items():
        name = loss.__name__
        (note,) = [line for line in notes if re.match(rf"  note: not exact: loss '{name}' .*, by {operation} \(", line)]
        assert note.removeprefix("  note: ") in table
        (row,) = [line for line in table.splitlines() if line.split()[:1] == [f"{name}/kernel"]]
        assert "0.0e+00" not in row


MEANS = {
    "mean": lambda y, p: ops.mean(ops.square(y - p)),
    "sum that keeps its axes": lambda y, p: ops.sum(_error(y, p), keepdims=True) / 5,
    "sum over size": lambda y, p: ops.sum(_error(y, p)) / ops.cast(ops.shape(p)[0], p.dtype),
    "terms": lambda y, p: 0.5 * ops.mean(_error(y, p)) + ops.mean(ops.abs(y - p)) + 1.0,
    "value of each over size": lambda y, p: ops.sum(_error(y, p) / ops.cast(ops.shape(p)[0], p.dtype)),
    "mean of weighted": lambda y, p: tf.reduce_mean(tf.where(y[:, 0] > 0, _error(y, p), 0.0 * _error(y, p))),
}


def test_one_number_that_is_a_mean_or_a_sum_has_no_note():
    model, targets = _with_losses({as_name(case): loss for case, loss in MEANS.items()})
    with distributed(model) as front:
        assert "loss" not in front.plan(X, targets)
        assert "note" not in front.verify(X, targets)


def test_one_number_that_cannot_be_decided_has_the_remedy():
    model = seeded(_dense(4))
    model.compile("sgd", _unknown, jit_compile=False)
    said = r"whether PyFuncStateless .* is not known: .*; how loss '_unknown' makes one number .* return a value"
    with distributed(model) as front, pytest.raises(ValueError, match=rf"differs from .* The plan says: {said}"):
        front.verify(X, Y)
