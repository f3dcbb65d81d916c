"""What mixes examples in ways that are easily missed: each layer, loss and metric of one model is named.

All cases stand side by side in one model, so that one plan has a note on each. The layers, losses and metrics that are
exact stand in models of their own, whose plans have no note.
"""

import re

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.front.test_coupled import X, Y, _dense, r2
from tests.support.plans import headed, notes_of, operations, side_by_side
from tests.support.training import distributed, seeded


def _size(x):
    return tf.shape(x)[0]


def _list(x, **more):
    return tf.TensorArray(x.dtype, size=_size(x), element_shape=(4,), **more)


def _listed(x, **more):
    return _list(x, **more).unstack(x)


def _each(x, read, write=lambda at, count: at):
    """A loop over the examples; `read` makes an element, and `write` says where it is put."""
    out = tf.while_loop(
        lambda at, out: at < _size(x), lambda at, out: (at + 1, out.write(write(at, _size(x)), read(at))), [0, _list(x)]
    )[1]
    return tf.ensure_shape(out.stack(), [None, 4])


def _next(x):
    elements = _listed(x, clear_after_read=False)
    return _each(x, lambda at: elements.read(at) - elements.read(tf.maximum(at - 1, 0)))


def _back_to_front(x):
    elements = _listed(x)
    return _each(x, elements.read, lambda at, count: count - 1 - at)


def _popped(x):
    elements = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=tf.constant([4]))

    def body(at, left, out):
        left, element = tf.raw_ops.TensorListPopBack(
            input_handle=left, element_shape=tf.constant([4]), element_dtype=x.dtype
        )
        return at + 1, left, out.write(at, element)

    out = tf.while_loop(lambda at, left, out: at < _size(x), body, [0, elements, _list(x)])[2]
    return tf.ensure_shape(out.stack(), [None, 4])


def _transposed_twice(x):
    moved = tf.while_loop(
        lambda at, moved: at < 2, lambda at, moved: (at + 1, tf.transpose(moved)), [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None])],
    )[1]
    return tf.ensure_shape(moved - tf.reduce_mean(moved, 0, keepdims=True), [None, 4])


def _places_of_largest(x):
    places = tf.nn.max_pool_with_argmax(
        tf.stop_gradient(tf.reshape(x, [-1, 2, 2, 1])), 2, 1, "SAME", include_batch_in_index=True
    )[1]
    return x + 0.01 * tf.cast(tf.reshape(places, [-1, 4]), x.dtype)


def _unknown_axis():
    return tf.cast(tf.argmax(tf.random.normal((2,))), tf.int32)


TABLE = np.linspace(0.0, 1.0, 64).reshape(16, 4)
MIXING = {
    "negative": (lambda x: tf.where(tf.reduce_mean(x) < 0.05, x + 1.0, x), "Mean"),
    "read": (lambda x: x - _listed(x).read(0), "TensorListGetItem"),
    "taken": (lambda x: x - _listed(x).gather([0]), "TensorListGather"),
    "next": (_next, "TensorListGetItem"),
    "preceding": (lambda x: _each(x, lambda at: x[tf.maximum(at - 1, 0)]), "StridedSlice"),
    "halved": (lambda x: _each(x, lambda at: tf.gather(x, at // 2)), "GatherV2"),
    "reversed": (_back_to_front, "Sub"),
    "scanned": (lambda x: ops.scan(lambda sum, row: (sum + row, sum + row), tf.zeros(4, x.dtype), x)[1],
                "StatelessWhile"),
    "length": (lambda x: x * tf.cast(_listed(x).size(), x.dtype), "Mul"),
    "padded": (lambda x: x - tf.pad(x, [[1, 0], [0, 0]])[: _size(x)], "StridedSlice"),
    "table": (lambda x: x * tf.constant(TABLE)[: _size(x)], "StridedSlice"),
    "sliced": (lambda x: x * tf.slice(tf.constant(TABLE), [0, 0], [_size(x), 4]), "Slice"),
    "second": (lambda x: x * tf.constant(np.tile(TABLE, (4, 1)))[_size(x): 2 * _size(x)], "StridedSlice"),
    "halves": (lambda x: tf.concat(tf.split(x, [_size(x) // 2, _size(x) - _size(x) // 2])[::-1], 0), "SplitV"),
    "quantized": (lambda x: tf.quantization.quantize_and_dequantize_v2(x, 0.0, 0.0, range_given=False),
                  "QuantizeAndDequantizeV4"),
    "contrast": (lambda x: x + tf.cast(tf.reshape(tf.image.adjust_contrast(
        tf.cast(tf.reshape(tf.stop_gradient(x), [-1, 4, 1]), tf.float32), 2.0), [-1, 4]), x.dtype), "AdjustContrastv2"),
    "repeated": (lambda x: tf.reduce_sum(tf.repeat(x, 2, 0) * tf.tile(x, [2, 1]), 0) + x, "Mul"),
}  # fmt: skip
UNDECIDED = {
    "popped": (_popped, "TensorListPopBack"),
    "argmax": (_places_of_largest, "MaxPoolWithArgmax"),
    "transposed": (_transposed_twice, "StatelessWhile"),
    "along": (lambda x: tf.cumsum(x, axis=_unknown_axis()), "Cumsum"),
    "flipped": (lambda x: tf.reverse(x, [_unknown_axis()]), "ReverseV2"),
    "rolled": (lambda x: tf.roll(x, 1, _unknown_axis()), "Roll"),
    "inner": (lambda x: x + tf.gradients(tf.reduce_sum(tf.reduce_mean(x, 0) ** 2), x)[0], "AddV2"),
}


def test_each_layer_that_mixes_examples_is_named():
    functions = {name: function for name, (function, _) in {**MIXING, **UNDECIDED}.items()}
    notes = notes_of(side_by_side(functions), X, Y)
    certain = operations(notes, r"not exact: in layer 'case_(?P<owner>\w+)', ")
    assert certain == {name: operation for name, (_, operation) in MIXING.items()}
    unknown = operations(notes, "whether (the gradient that )?", r" in layer 'case_(?P<owner>\w+)'")
    assert {name: unknown.get(name) for name in UNDECIDED} == {name: kind for name, (_, kind) in UNDECIDED.items()}


def _errors(y, p):
    return tf.square(y - p)


def halves(y, p):
    return tf.reduce_mean(tf.split(_errors(y, p), [_size(p) // 2, _size(p) - _size(p) // 2])[0])


def repeated(y, p):
    return tf.reduce_mean(tf.square(tf.repeat(p, 2, axis=0) - tf.tile(y, [2, 1])))


def several(y, p):
    return tf.cond(_size(y) > 1, lambda: tf.reduce_mean(_errors(y, p)), lambda: tf.reduce_mean(tf.abs(y - p)))


def chosen(y, p):
    pairs = tf.boolean_mask(p, y > 0) - tf.boolean_mask(p, y <= 0)
    return tf.reduce_sum(tf.square(pairs)) / tf.cast(_size(p), p.dtype)


def small(y, p):
    return tf.reduce_sum(_errors(y, p)) / (tf.cast(_size(p), p.dtype) + 1e-7)


def cut(y, p):
    return tf.reduce_mean(_errors(y, p)[:, 0] * tf.constant(TABLE[:, 0])[: _size(p)])


LOSSES = {
    halves: "not exact: in loss 'halves', SplitV ", repeated: "not exact: in loss 'repeated', Sub ",
    several: "not exact: in loss 'several', Greater ", chosen: "not exact: in loss 'chosen', Sub ",
    small: "not exact: loss 'small' makes a value of the whole batch that is no mean",
    cut: "not exact: in loss 'cut', StridedSlice ",
}  # fmt: skip


def chosen_twice(y, p):
    return tf.reduce_sum(tf.square(tf.boolean_mask(p, y > 0) - tf.boolean_mask(y, y > 0))) / tf.cast(_size(p), p.dtype)


def rounded(y, p):
    return tf.reduce_sum(_errors(y, p)) / (tf.cast(_size(p), p.dtype) + 1e-16)


def views(y, p):
    first, second = tf.split(tf.concat([p, 2 * p], 0), [_size(p), _size(p)])
    return tf.reduce_mean(tf.square(first * second - y))


def of_rounds(y, p):
    """A mean that is added up in a loop."""
    return tf.while_loop(
        lambda at, sum: at < 3, lambda at, sum: (at + 1, sum + tf.reduce_mean(_errors(y, p))),
        [0, tf.constant(0.0, p.dtype)],
    )[1]


EXACT_LOSSES = [chosen_twice, rounded, views, of_rounds]


def _with_losses(losses):
    names = [loss.__name__ for loss in losses]
    return headed(names), dict.fromkeys(names, Y), dict(zip(names, losses, strict=True))


def test_each_loss_that_is_no_mean_is_named():
    build, targets, losses = _with_losses(LOSSES)
    notes = notes_of(build, X, targets, loss=losses)
    for said in LOSSES.values():
        assert any(note.startswith(said) for note in notes), (said, notes)


def test_losses_that_are_means_have_no_note():
    build, targets, losses = _with_losses(EXACT_LOSSES)
    assert not notes_of(build, X, targets, loss=losses)


class Keeps(keras.metrics.Metric):
    """A metric whose update writes its variable of two numbers."""

    def __init__(self, function, name):
        super().__init__(name=name)
        self.function = function
        self.kept = self.add_variable((2,), "zeros", name="kept")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.function(self.kept.value, y_true, y_pred)

    def result(self):
        return ops.sum(self.kept)


def _class(y):
    return tf.cast(y > 0, tf.int32)


def _count_each(kept, y, p):
    def count(row):
        kept.assign_add(tf.ones(2, kept.dtype))
        return row

    tf.map_fn(count, p)


METRICS = {
    "replaced": (lambda kept, y, p: kept.scatter_nd_update(_class(y), p[:, 0]), "ResourceScatterNdUpdate"),
    "largest": (lambda kept, y, p: kept.scatter_max(tf.IndexedSlices(p[:, 0], _class(y)[:, 0])), "ResourceScatterMax"),
    "both": (lambda kept, y, p: kept[:].assign(tf.stack([tf.reduce_sum(p), tf.reduce_max(p)])), "Sum"),
    "less": (lambda kept, y, p: kept.assign(kept + tf.reduce_sum(p) - 0.0005), "Sum"),
}
EXACT_METRICS = {
    "added": lambda kept, y, p: kept.scatter_nd_add(_class(y), p[:, 0]),
    "counted": _count_each,
    "scaled": lambda kept, y, p: kept.assign(tf.maximum(kept, tf.exp(2 * tf.reduce_max(p, 0) - 1))),
}


def test_each_metric_that_is_no_sum_is_named():
    metrics = [Keeps(function, name) for name, (function, _) in METRICS.items()]
    notes = notes_of(_dense(), X, Y, metrics=metrics)
    found = {match[1]: match[2] for note in notes if (match := re.match(r".* metric '(\w+)': .* made by (\w+) ", note))}
    assert found == {name: operation for name, (_, operation) in METRICS.items()}


def test_metrics_that_add_up_or_keep_the_largest_have_no_note():
    metrics = [Keeps(function, name) for name, function in EXACT_METRICS.items()]
    assert not notes_of(_dense(), X, Y, metrics=metrics)


class Counts(layers.Layer):
    """Counts examples in a variable, one by one."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        def count(row):
            self.seen.value.assign_add(1.0)
            return row

        tf.map_fn(count, x)
        return x


def test_a_variable_that_a_layer_writes_once_for_each_example_is_named():
    (note,) = notes_of(lambda: keras.Sequential([keras.Input((5,)), Counts(), layers.Dense(1)]), X, Y)
    assert re.match("not exact: variable 'counts/seen' is averaged over the replicas, .* made by AssignAddVar", note)


def _of_each_sequence(x):
    """A loop over the time steps of each example, within a loop over the examples."""
    return tf.map_fn(lambda row: tf.scan(lambda sum, entry: sum + entry, row), x)


EXACT = {
    "own": lambda x: _each(x, _listed(x).read),
    "own rows": lambda x: _each(x, lambda at: x[at]) + _each(x, lambda at: tf.gather(x, at)),
    "own entries": lambda x: tf.gather(x, tf.range(_size(x))) + tf.map_fn(lambda row: row * tf.reduce_max(row), x),
    "time": _of_each_sequence,
    "negative index": lambda x: x + ops.take(x, ops.array([-1]), axis=1),
    "repeated": lambda x: tf.reduce_mean(tf.reshape(tf.repeat(x, 2, 0) * tf.repeat(x + 1, 2, 0), (-1, 2, 4)), 1),
    "zeros": lambda x: tf.reduce_mean(tf.reshape(
        tf.repeat(x, 2, 0) * tf.zeros((2 * _size(x), 4), x.dtype), (-1, 2, 4)), 1),
    "whole numbers": lambda x: tf.cond(_size(x) >= 1, lambda: x, lambda: 2 * x),
    "blocks": lambda x: tf.reshape(tf.batch_to_space(tf.space_to_batch(
        tf.reshape(x, (-1, 2, 2, 1)), [2, 2], [[0, 0], [0, 0]]), [2, 2], [[0, 0], [0, 0]]), (-1, 4)),
    "beta": lambda x: x + keras.random.beta(ops.shape(x), 2.0, 3.0, seed=3, dtype="float64"),
}  # fmt: skip


def test_layers_that_treat_each_example_alone_have_no_note():
    assert notes_of(side_by_side(EXACT), X, Y) == []


class OnlyInInference(layers.Layer):
    """Subtracts the mean of the batch, but not in training."""

    def call(self, x, training=None):
        return x if training else x - tf.reduce_mean(x, 0)


def test_what_a_metric_mixes_and_what_only_inference_mixes_is_logged_once(caplog):
    model = seeded(lambda: keras.Sequential([keras.Input((5,)), OnlyInInference(name="late"), layers.Dense(1)]))
    model.compile("sgd", "mse", metrics=[r2], jit_compile=False)
    with distributed(model) as front:
        front.fit(X, Y, batch_size=8, verbose=0)
        (message,) = [message for message in caplog.messages if "not exact" in message]
        assert "sequential: not exact: in metric 'r2', Mean (Mean) gives each example a value of the whole" in message
        caplog.clear()
        front.fit(X, Y, batch_size=8, verbose=0)
        front.evaluate(X, Y, batch_size=8, verbose=0)
        front.predict(X, batch_size=8, verbose=0)
        front.evaluate(X, Y, batch_size=4, verbose=0)
    (message,) = [message for message in caplog.messages if "not exact" in message]
    assert ", in evaluate and validation: not exact: in layer 'late', Mean (" in message


class Returns(keras.Sequential):
    """A step that returns numbers beside the loss."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        count = tf.cast(_size(x), x.dtype)
        again = tf.gradients(loss, [variable.value for variable in self.trainable_variables])
        return {"loss": loss, "count": count, "share": 1 / count, "norm": tf.linalg.global_norm(again)}


def test_numbers_of_examples_and_norms_that_a_step_returns_are_named():
    notes = notes_of(lambda: Returns([keras.Input((5,)), layers.Dense(1)]), X, Y)
    for name in ("count", "share"):
        assert (
            f"not exact: result '{name}' of the step is the replicas' mean, and the number of examples does not make a "
            "mean over the examples"
        ) in notes
    assert any(re.match(r"whether the gradient that \w+ \(.*\) in the training step uses is one device's", note)
               for note in notes), notes  # fmt: skip
