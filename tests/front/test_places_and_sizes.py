"""Positions of examples, the number of examples and custom gradients: the plan names what makes replicas differ."""

import re

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.front.test_coupled import X, Y, _dense, _with
from tests.support.plans import as_name, headed, notes_of, operations, side_by_side


def _size(x):
    return tf.shape(x)[0]


def _places(x):
    return tf.range(_size(x))


def _error(y, p):
    return tf.square(y - p)


def _gradient(function):
    """The identity, whose gradient is another function of the gradient that it gets."""
    return tf.custom_gradient(lambda x: (tf.identity(x), function))


def _labels(x):
    return tf.cast(tf.argmax(x, 1), tf.int32)


def _many_rounds(x):
    return tf.while_loop(lambda at, kept: at < _size(x), lambda at, kept: (at + 1, kept * 0.9), [0, x])[1]


def _pooled_along_the_batch(x):
    return tf.nn.conv1d(x[None], tf.ones((3, 4, 4), x.dtype), 1, "SAME")[0]


LAYERS = {
    "factor": (lambda x: x * tf.cast(_places(x), x.dtype)[:, None], "Range"),
    "term": (lambda x: x + tf.cast(_places(x), x.dtype)[:, None], "Range"),
    "first two": (lambda x: tf.where((_places(x) < 2)[:, None], x, 0.5 * x), "Range"),
    "encoded": (lambda x: x + tf.one_hot(_places(x), 4, dtype=x.dtype), "Range"),
    "looked up": (lambda x: x + tf.gather(tf.ones((8, 4), x.dtype), _places(x)), "Range"),
    "in a loop": (lambda x: tf.map_fn(
        lambda both: both[0] * tf.cast(both[1], x.dtype), (x, _places(x)), fn_output_signature=x.dtype), "Range"),
    "halves": (lambda x: tf.concat([x[: _size(x) // 2] * 2, x[_size(x) // 2:]], 0), "StridedSlice"),
    "twice each": (lambda x: x + tf.gather(x, _places(x) // 2), "GatherV2"),
    "next": (lambda x: x + tf.gather(x, tf.minimum(_places(x) + 1, _size(x) - 1)), "GatherV2"),
    "from the second on": (lambda x: x + tf.reduce_sum(tf.gather(x, tf.range(1, _size(x)))), "GatherV2"),
    "sums of others": (lambda x: x + tf.math.unsorted_segment_sum(
        tf.repeat(x, 2, 0), tf.tile(_places(x), [2]), _size(x)), "UnsortedSegmentSum"),
    "put beside others": (lambda x: x + tf.scatter_nd(
        tf.tile(_places(x), [2])[:, None], tf.repeat(x, 2, 0), tf.shape(x)), "ScatterNd"),
    "of another copy": (lambda x: x + tf.gather(tf.concat([x, x], 0), _places(x) * 2), "GatherV2"),
    "other entries": (lambda x: x + tf.gather(tf.reshape(x, [-1]), _places(x) * 2)[:, None], "GatherV2"),
    "linspace": (lambda x: x * tf.linspace(tf.constant(0.0, x.dtype), 1.0, _size(x))[:, None], "Slice"),
    "fft": (lambda x: tf.transpose(tf.abs(tf.signal.fft(tf.cast(tf.transpose(x), "complex64")))), "FFT"),
    "diagonal": (lambda x: x + tf.eye(_size(x), 4, dtype=x.dtype), "MatrixSetDiagV3"),
    "first written": (lambda x: tf.tensor_scatter_nd_update(x, [[0]], tf.ones((1, 4), x.dtype)), "TensorScatterUpdate"),
    "put by value": (lambda x: x + tf.scatter_nd(_labels(x)[:, None], x, tf.shape(x)), "ScatterNd"),
    "many": (lambda x: tf.cond(_size(x) > 5, lambda: x, lambda: 2 * x), "Greater"),
    "many, chosen": (lambda x: tf.where(_size(x) > 5, x, 2 * x), "Greater"),
    "remainder": (lambda x: x * tf.cast(_size(x) % 3, x.dtype), "FloorMod"),
    "at least": (lambda x: x * tf.cast(tf.maximum(_size(x), 5), x.dtype), "Maximum"),
    "rounds": (_many_rounds, "Less"),
    "value of a branch": (lambda x: x * tf.cast(tf.nn.zero_fraction(tf.nn.relu(x)), x.dtype), "Sum"),
    "vectorized_map": (lambda x: tf.vectorized_map(lambda row: row * tf.reduce_mean(x), x), "Mean"),
}  # fmt: skip


UNDECIDED = {
    "convolution": (_pooled_along_the_batch, "Conv2D"),
    "reshape": (lambda x: tf.reshape(tf.transpose(x), tf.shape(x)), "MatMul"),
}


def test_a_layer_that_uses_places_or_the_number_of_examples():
    functions = {name: function for name, (function, _) in LAYERS.items()}
    found = operations(notes_of(side_by_side(functions), X, Y), r"not exact: in layer 'case_(?P<owner>\w+)', ")
    assert found == {as_name(name): operation for name, (_, operation) in LAYERS.items()}


@pytest.mark.parametrize("case", UNDECIDED)
def test_what_cannot_be_decided_is_named(case: str):
    function, operation = UNDECIDED[case]
    (note,) = notes_of(_with(function), X, Y)
    assert re.match(rf"whether {operation} \(.*\) in layer '(odd|last)' mixes the examples of a batch is not", note)


GRADIENTS = {
    "mean": (lambda upstream: upstream - tf.reduce_mean(upstream, 0), "Mean"),
    "norm": (lambda upstream: upstream / tf.norm(upstream), "Sum"),
    "clipped": (lambda upstream: tf.clip_by_norm(upstream, 0.01), "Sum"),
    "scaled": (lambda upstream: upstream * tf.cast(_size(upstream), upstream.dtype), "Mul"),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_a_custom_gradient_that_mixes_examples(case: str):
    function, operation = GRADIENTS[case]
    (note,) = notes_of(_with(_gradient(function)), X, Y)
    assert re.match(rf"not exact: in a custom gradient, {operation} \(", note)


class Clipped(layers.Dense):
    """A dense layer that clips its kernel's gradient by the norm."""

    def call(self, x, training=None):
        clipped = _gradient(lambda upstream: tf.clip_by_norm(upstream, 0.01))
        return ops.matmul(x, clipped(tf.convert_to_tensor(self.kernel)))


def test_a_custom_gradient_of_a_kernel_is_no_sum_if_it_is_clipped():
    (note,) = notes_of(lambda: keras.Sequential([keras.Input((5,)), Clipped(1, use_bias=False)]), X, Y)
    assert "in a custom gradient, Mul (" in note and "that is no sum over the examples" in note


OWN = {
    "gathered": lambda x: x + tf.gather(x, _places(x)) + tf.gather(tf.concat([x, x], 0), _places(x)),
    "entry": lambda x: x + tf.gather(tf.reshape(x, [-1]), _places(x) * 4 + 1)[:, None],
    "entry of a label": lambda x: x + tf.gather(tf.reshape(x, [-1]), _places(x) * 4 + _labels(x))[:, None],
    "row of an entry": lambda x: x + tf.gather(x, (_places(x) * 4 + _labels(x)) // 4),
    "put": lambda x: x + tf.scatter_nd(_places(x)[:, None], x, tf.shape(x)),
    "vectorized_map": lambda x: tf.vectorized_map(lambda row: row - tf.reduce_mean(row), x),
    "views": lambda x: (lambda both: both[: tf.shape(both)[0] // 2] * both[_size(x):])(tf.concat([x, x + 1], 0)),
    "reversed": _gradient(lambda upstream: -0.5 * upstream),
    "gradient of each": _gradient(lambda upstream: upstream / (1.0 + tf.norm(upstream, axis=-1, keepdims=True))),
    "silu": tf.nn.silu,
    "loop": lambda x: tf.map_fn(lambda row: row - tf.reduce_max(row), x),
    "at least one": lambda x: x / x * tf.reduce_max(x, 1, keepdims=True) * tf.cast(_size(x) > 0, x.dtype),
}


def test_what_an_example_does_with_its_own_place_is_exact():
    assert not notes_of(side_by_side(OWN), X, Y)


LOSSES = {
    "chosen": (lambda y, p: tf.gather_nd(_error(y, p), tf.where(y > 0)), "loss '{}' gives a value for some examples"),
    "masked": (lambda y, p: tf.boolean_mask(_error(y, p), y > 0), "loss '{}' gives a value for some examples"),
    "mean of chosen": (
        lambda y, p: tf.reduce_mean(tf.gather_nd(_error(y, p), tf.where(y > 0))), "loss '{}' .* by Mean"),
    "first half": (lambda y, p: tf.reduce_mean(_error(y, p)[: _size(y) // 2]), "in loss '{}', StridedSlice"),
    "places": (lambda y, p: _error(y, p)[:, 0] * tf.cast(_places(y), p.dtype), "in loss '{}', Range"),
    "added to places": (
        lambda y, p: tf.reduce_mean(tf.square(tf.tensor_scatter_nd_add(
            tf.zeros((2, 1), p.dtype), tf.cast(y > 0, tf.int32), y - p))), "loss '{}' .* by TensorScatterAdd"),
    "segments": (
        lambda y, p: tf.reduce_mean(tf.math.unsorted_segment_mean(_error(y, p), tf.cast(y[:, 0] > 0, tf.int32), 2)),
        "loss '{}' .* by UnsortedSegmentSum"),
    "remainder": (lambda y, p: tf.reduce_mean(_error(y, p)) * tf.cast(_size(y) % 3, p.dtype), "loss '{}' .* by Mean"),
}  # fmt: skip


@pytest.mark.long
def test_a_loss_of_some_examples_or_of_their_places():
    losses = {as_name(name): loss for name, (loss, _) in LOSSES.items()}
    for name, loss in losses.items():
        loss.__name__ = name
    notes = notes_of(headed(losses), X, dict.fromkeys(losses, Y), loss=losses)
    for name, (_, said) in LOSSES.items():
        pattern = "not exact: " + said.format(as_name(name))
        assert any(re.match(pattern, note) for note in notes), (pattern, notes)


def test_a_sum_of_chosen_examples_over_their_number_is_a_mean():
    def loss(y, p):
        return tf.reduce_sum(tf.boolean_mask(_error(y, p), y > 0)) / tf.cast(_size(y), p.dtype)

    assert not notes_of(_dense(), X, Y, loss=loss)
