"""Layers that mix examples, most of them in ways that are easily missed: the plan names the operation of each.

All cases stand side by side in one model, so that one plan has a note on each. The layers that treat each example alone
stand in a model of their own, whose plan has no note.
"""

import re
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.front.notes.models import X, Y, centred, holding, size
from tests.support.plans import as_name, notes_of, operations, side_by_side
from tests.support.training import distributed, seeded


def _number(x):
    """The number of examples as a number that a layer computes with."""
    return tf.cast(size(x), x.dtype)


def _places(x):
    return tf.range(size(x))


def _labels(x):
    return tf.cast(tf.argmax(x, 1), tf.int32)


def _ids(x):
    return tf.cast(x[:, 0] > 0, tf.int32)


def _list(x, **more):
    return tf.TensorArray(x.dtype, size=size(x), element_shape=(4,), **more)


def _listed(x, **more):
    return _list(x, **more).unstack(x)


def _each(x, read, write=lambda at, count: at):
    """A loop over the examples; `read` makes an element, and `write` says where it is put."""
    out = tf.while_loop(
        lambda at, out: at < size(x), lambda at, out: (at + 1, out.write(write(at, size(x)), read(at))), [0, _list(x)]
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

    out = tf.while_loop(lambda at, left, out: at < size(x), body, [0, elements, _list(x)])[2]
    return tf.ensure_shape(out.stack(), [None, 4])


def _swapped(x):
    """A cumulative sum along the batch, behind a permutation that the graph computes."""
    last = tf.rank(x) - 1
    back_to_front = tf.concat([[last], tf.range(1, last), [0]], 0)
    return tf.transpose(tf.cumsum(tf.transpose(x, back_to_front), axis=1), back_to_front)


def _cubes(function):
    return lambda x: ops.reshape(function(ops.reshape(x, (-1, 2, 2))), (-1, 4))


def _many_rounds(x):
    return tf.while_loop(lambda at, kept: at < size(x), lambda at, kept: (at + 1, kept * 0.9), [0, x])[1]


TABLE = np.linspace(0.0, 1.0, 64).reshape(16, 4)
MIXING = {
    "roll": (lambda x: ops.roll(x, 1, axis=0), "Roll"),
    "sort": (lambda x: ops.sort(x, axis=0), "TopKV2"),
    "top_k": (lambda x: x * ops.sum(ops.top_k(ops.transpose(x), 2)[0]), "TopKV2"),
    "flip": (lambda x: ops.flip(x, axis=0), "ReverseV2"),
    "reverse": (lambda x: x[::-1], "StridedSlice"),
    "cumsum": (lambda x: ops.cumsum(x, axis=0), "Cumsum"),
    "gather": (lambda x: x + ops.take(x, ops.array([0]), axis=0), "GatherV2"),
    "maximum": (lambda x: x / ops.max(x), "Max"),
    "gram": (lambda x: ops.matmul(x, ops.matmul(ops.transpose(x), x)), "MatMul"),
    "attention": (lambda x: ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x), "MatMul"),
    "einsum": (lambda x: x + ops.einsum("bi,bj->ij", x, x)[0], "Einsum"),
    "pairs": (lambda x: ops.reshape(ops.repeat(ops.mean(ops.reshape(x, (-1, 2, 4)), axis=1), 2, axis=0), (-1, 4)),
              "Mean"),
    "segments": (lambda x: tf.gather(tf.math.unsorted_segment_sum(x, _ids(x), 2), _ids(x)), "UnsortedSegmentSum"),
    "function": (lambda x: tf.function(lambda rows: rows - tf.reduce_max(rows))(x), "Max"),
    "softmax": (_cubes(lambda x: ops.softmax(x, axis=0)), "Softmax"),
    "log_softmax": (_cubes(lambda x: ops.log_softmax(x, axis=0)), "LogSoftmax"),
    "permutation of the graph": (_swapped, "Cumsum"),
    "padded": (lambda x: x - tf.pad(x, [[1, 0], [0, 0]])[: size(x)], "StridedSlice"),
    "halves": (lambda x: tf.concat(tf.split(x, [size(x) // 2, size(x) - size(x) // 2])[::-1], 0), "SplitV"),
    "quantized": (lambda x: tf.quantization.quantize_and_dequantize_v2(x, 0.0, 0.0, range_given=False),
                  "QuantizeAndDequantizeV4"),
    "contrast": (lambda x: x + tf.cast(tf.reshape(tf.image.adjust_contrast(
        tf.cast(tf.reshape(tf.stop_gradient(x), [-1, 4, 1]), tf.float32), 2.0), [-1, 4]), x.dtype), "AdjustContrastv2"),
    "repeated": (lambda x: tf.reduce_sum(tf.repeat(x, 2, 0) * tf.tile(x, [2, 1]), 0) + x, "Mul"),
    "fft": (lambda x: tf.transpose(tf.abs(tf.signal.fft(tf.cast(tf.transpose(x), "complex64")))), "FFT"),
    "vectorized_map": (lambda x: tf.vectorized_map(lambda row: row * tf.reduce_mean(x), x), "Mean"),
    # Branches and loops
    "negative": (lambda x: tf.where(tf.reduce_mean(x) < 0.05, x + 1.0, x), "Mean"),
    "condition": (lambda x: tf.cond(tf.reduce_mean(x) > 0, lambda: x, lambda: -x), "Mean"),
    "value of a branch": (lambda x: x * tf.cast(tf.nn.zero_fraction(tf.nn.relu(x)), x.dtype), "Sum"),
    "loop": (lambda x: tf.while_loop(lambda rest: tf.reduce_sum(rest**2) > 1, lambda rest: [rest / 2], [x])[0], "Sum"),
    "loop of two": (lambda x: tf.while_loop(
        lambda rest, largest: largest > 0.1, lambda rest, _: (rest / 2, tf.reduce_max(rest)), [x, tf.reduce_max(x)])[0],
        "Max"),
    "read": (lambda x: x - _listed(x).read(0), "TensorListGetItem"),
    "crossed": (lambda x: x + tf.transpose(tf.linalg.cross(tf.transpose(x), tf.sin(tf.transpose(x)))), "Cross"),
    "taken": (lambda x: x - _listed(x).gather([0]), "TensorListGather"),
    "next": (_next, "TensorListGetItem"),
    "preceding": (lambda x: _each(x, lambda at: x[tf.maximum(at - 1, 0)]), "StridedSlice"),
    "halved": (lambda x: _each(x, lambda at: tf.gather(x, at // 2)), "GatherV2"),
    "reversed": (_back_to_front, "Sub"),
    "scanned": (lambda x: ops.scan(lambda sum, row: (sum + row, sum + row), tf.zeros(4, x.dtype), x)[1],
                "StatelessWhile"),
    # The places of the examples
    "factor": (lambda x: x * tf.cast(_places(x), x.dtype)[:, None], "Range"),
    "term": (lambda x: x + tf.cast(_places(x), x.dtype)[:, None], "Range"),
    "first two": (lambda x: tf.where((_places(x) < 2)[:, None], x, 0.5 * x), "Range"),
    "in a loop": (lambda x: tf.map_fn(
        lambda both: both[0] * tf.cast(both[1], x.dtype), (x, _places(x)), fn_output_signature=x.dtype), "Range"),
    "from the second on": (lambda x: x + tf.reduce_sum(tf.gather(x, tf.range(1, size(x)))), "GatherV2"),
    "sums of others": (lambda x: x + tf.math.unsorted_segment_sum(
        tf.repeat(x, 2, 0), tf.tile(_places(x), [2]), size(x)), "UnsortedSegmentSum"),
    "put beside others": (lambda x: x + tf.scatter_nd(
        tf.tile(_places(x), [2])[:, None], tf.repeat(x, 2, 0), tf.shape(x)), "ScatterNd"),
    "of another copy": (lambda x: x + tf.gather(tf.concat([x, x], 0), _places(x) * 2), "GatherV2"),
    "other entries": (lambda x: x + tf.gather(tf.reshape(x, [-1]), _places(x) * 2)[:, None], "GatherV2"),
    "diagonal": (lambda x: x + tf.eye(size(x), 4, dtype=x.dtype), "MatrixSetDiagV3"),
    "first written": (lambda x: tf.tensor_scatter_nd_update(x, [[0]], tf.ones((1, 4), x.dtype)), "TensorScatterUpdate"),
    "put by value": (lambda x: x + tf.scatter_nd(_labels(x)[:, None], x, tf.shape(x)), "ScatterNd"),
    # The number of examples
    "divided by the size": (lambda x: x / _number(x), "RealDiv"),
    "at most the size": (lambda x: ops.minimum(x, _number(x)), "Minimum"),
    "larger than the size": (lambda x: tf.where(x > _number(x), x, -x), "Greater"),
    "beside the size": (lambda x: tf.concat([x, tf.fill([size(x), 1], _number(x))], 1), "Fill"),
    "times the size in a loop": (lambda x: tf.map_fn(lambda row: row * _number(x), x), "Mul"),
    "the size chosen": (lambda x: tf.where(x > 0, _number(x), x), "SelectV2"),
    "number of different ids": (lambda x: x * tf.cast(tf.size(tf.unique(_ids(x))[0]), x.dtype), "Size"),
    "length": (lambda x: x * tf.cast(_listed(x).size(), x.dtype), "Mul"),
    "table": (lambda x: x * tf.constant(TABLE)[: size(x)], "StridedSlice"),
    "many": (lambda x: tf.cond(size(x) > 5, lambda: x, lambda: 2 * x), "Greater"),
    "remainder": (lambda x: x * tf.cast(size(x) % 3, x.dtype), "FloorMod"),
    "at least": (lambda x: x * tf.cast(tf.maximum(size(x), 5), x.dtype), "Maximum"),
    "rounds": (_many_rounds, "Less"),
}  # fmt: skip


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


def _in_other_rows(x):
    """A softmax over as many entries as there are examples, of an unknown number of entries of each example."""
    entries = x[:, : 4 + 0 * _unknown_axis()]
    return tf.reshape(tf.nn.softmax(tf.reshape(entries, [-1, size(x)])), [-1, 4])


UNDECIDED = {
    "popped": (_popped, "TensorListPopBack"),
    "argmax": (_places_of_largest, "MaxPoolWithArgmax"),
    "transposed": (_transposed_twice, "StatelessWhile"),
    "along": (lambda x: tf.cumsum(x, axis=_unknown_axis()), "Cumsum"),
    "flipped": (lambda x: tf.reverse(x, [_unknown_axis()]), "ReverseV2"),
    "rolled": (lambda x: tf.roll(x, 1, _unknown_axis()), "Roll"),
    "reshaped": (_in_other_rows, "Reshape"),
    "inner": (lambda x: x + tf.gradients(tf.reduce_sum(tf.reduce_mean(x, 0) ** 2), x)[0], "AddV2"),
}


def test_each_layer_that_mixes_examples_is_named():
    functions = {name: function for name, (function, _) in {**MIXING, **UNDECIDED}.items()}
    notes = notes_of(side_by_side(functions), X, Y)
    certain = operations(notes, r"not exact: in layer 'case_(?P<owner>\w+)', ")
    assert certain == {as_name(name): operation for name, (_, operation) in MIXING.items()}
    assert sum(note.startswith("not exact") for note in notes) == len(MIXING)
    unknown = operations(notes, "whether (the gradient that )?", r" in layer 'case_(?P<owner>\w+)'")
    assert {name: unknown.get(name) for name in UNDECIDED} == {name: kind for name, (_, kind) in UNDECIDED.items()}


@cache
def _keys():
    with tf.init_scope():
        return tf.Variable([0.0, 1.0], trainable=False)


def _permuted(x):
    order = tf.argsort(_keys())
    return tf.ensure_shape(tf.transpose(tf.transpose(x, order), order), x.shape)


ALONE_UNDECIDED = {
    "convolution": (lambda x: tf.nn.conv1d(x[None], tf.ones((3, 4, 4), x.dtype), 1, "SAME")[0], "Conv2D", "odd"),
    "permutation": (_permuted, "Transpose", "odd"),
    "reshape": (lambda x: tf.reshape(tf.transpose(x), tf.shape(x)), "MatMul", "last"),
}


@pytest.mark.parametrize("case", ALONE_UNDECIDED)
def test_what_cannot_be_decided_is_named(case: str):
    function, operation, layer = ALONE_UNDECIDED[case]
    (note,) = notes_of(holding(function), X, Y)
    assert re.match(rf"maybe not exact: it is not known whether {operation} \(.*\) in layer '{layer}' mixes", note)


def _odd(x):
    found = tf.numpy_function(lambda value: value - value.mean(axis=0), [tf.stop_gradient(x)], x.dtype, False)
    found.set_shape(x.shape)
    return x + found


def test_an_unknown_operation_is_named_as_such_and_verify_quotes_it(caplog):
    (note,) = notes_of(holding(_odd), X, Y)
    assert re.match(r"maybe not exact: it is not known whether PyFuncStateless \(.*\) in layer 'odd' mixes the ", note)
    model = seeded(holding(_odd))
    model.compile("sgd", "mse", jit_compile=False)
    with distributed(model) as front, pytest.raises(ValueError, match=r"says: maybe not exact: .* PyFuncStateless"):
        front.fit(X, Y, verbose=0)
        assert note in caplog.text
        front.verify(X, Y)


def _gradient(function):
    """The identity, whose gradient is another function of the gradient that it gets."""
    return tf.custom_gradient(lambda x: (tf.identity(x), function))


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


def test_one_replica_has_the_whole_batch():
    assert not notes_of(holding(centred), X, Y, replicas=1)


def _silent(x):
    ops.sort(x, axis=0)
    return x


EXACT = {
    "own": lambda x: _each(x, _listed(x).read),
    "own rows": lambda x: _each(x, lambda at: x[at]) + _each(x, lambda at: tf.gather(x, at)),
    "own entries": lambda x: tf.map_fn(lambda row: row * tf.reduce_max(row), x),
    # A loop over the time steps of each example, within a loop over the examples.
    "time": lambda x: tf.map_fn(lambda row: tf.scan(lambda sum, entry: sum + entry, row), x),
    "negative index": lambda x: x + ops.take(x, ops.array([-1]), axis=1),
    "repeated": lambda x: tf.reduce_mean(tf.reshape(tf.repeat(x, 2, 0) * tf.repeat(x + 1, 2, 0), (-1, 2, 4)), 1),
    "zeros": lambda x: tf.reduce_mean(tf.reshape(
        tf.repeat(x, 2, 0) * tf.zeros((2 * size(x), 4), x.dtype), (-1, 2, 4)), 1),
    "whole numbers": lambda x: tf.cond(size(x) >= 1, lambda: x, lambda: 2 * x),
    "blocks": lambda x: tf.reshape(tf.batch_to_space(tf.space_to_batch(
        tf.reshape(x, (-1, 2, 2, 1)), [2, 2], [[0, 0], [0, 0]]), [2, 2], [[0, 0], [0, 0]]), (-1, 4)),
    "beta": lambda x: x + keras.random.beta(ops.shape(x), 2.0, 3.0, seed=3, dtype="float64"),
    "gathered": lambda x: x + tf.gather(x, _places(x)) + tf.gather(tf.concat([x, x], 0), _places(x)),
    "entry": lambda x: x + tf.gather(tf.reshape(x, [-1]), _places(x) * 4 + 1)[:, None],
    "entry of a label": lambda x: x + tf.gather(tf.reshape(x, [-1]), _places(x) * 4 + _labels(x))[:, None],
    "row of an entry": lambda x: x + tf.gather(x, (_places(x) * 4 + _labels(x)) // 4),
    "put": lambda x: x + tf.scatter_nd(_places(x)[:, None], x, tf.shape(x)),
    "vectorized_map": lambda x: tf.vectorized_map(lambda row: row - tf.reduce_mean(row), x),
    "views": lambda x: (lambda both: both[: tf.shape(both)[0] // 2] * both[size(x):])(tf.concat([x, x + 1], 0)),
    "reversed": _gradient(lambda upstream: -0.5 * upstream),
    "gradient of each": _gradient(lambda upstream: upstream / (1.0 + tf.norm(upstream, axis=-1, keepdims=True))),
    "silu": tf.nn.silu,
    "at least one": lambda x: x / x * tf.reduce_max(x, 1, keepdims=True) * tf.cast(size(x) > 0, x.dtype),
    "nothing is made of it": _silent,
}  # fmt: skip


def test_layers_that_treat_each_example_alone_have_no_note():
    assert notes_of(side_by_side(EXACT), X, Y) == []
