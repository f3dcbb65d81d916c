"""Machines draw what they own of first values: the numbers that Keras's initializers draw as a whole."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.capture import capture
from autodist_core.runtime import transfers
from autodist_core.strategy import AllReduce, Sharded
from autodist_keras.capture import recipes
from tests.capture.plain import dense_step, trace
from tests.kernel.graphs import machine, placed

INITIALIZERS = [
    keras.initializers.GlorotUniform(seed=1), keras.initializers.HeNormal(seed=2),
    keras.initializers.RandomNormal(1.5, 0.3, seed=3), keras.initializers.RandomUniform(-3, 1, seed=4),
    keras.initializers.Constant(0.3), keras.initializers.Zeros(),
]
SHAPES = [(370, 5), (1001, 1), (1010,), (71, 7, 3), (2, 533)]  # TensorFlow has smaller zeros as constants


@pytest.mark.parametrize("builder, axes, dtype", [
    (AllReduce(), set(), "float64"), (Sharded(weights="gathered", whole_bytes=0), {0, 1, 2}, "float32"),
], ids=["whole", "in parts"])
def test_machines_draw_what_keras_draws(monkeypatch, builder, axes, dtype):
    monkeypatch.setattr(transfers, "PIECE_BYTES", 2400)
    wanted = dict(zip("abcdefg", zip(2 * INITIALIZERS, 2 * SHAPES, strict=False), strict=False))
    variables = {name: tf.Variable(tf.zeros(shape, dtype), name=name) for name, (_, shape) in wanted.items()}

    def total(given, x):
        return tf.add_n([tf.reduce_sum(tf.cast(each, x.dtype)) for each in given.values()]) * tf.reduce_mean(x)

    item = capture(trace(dense_step(variables, loss_of=total), variables))
    placement = placed(item, builder, machine(3))
    assert {part.axis for parts in placement.parts.values() for part in parts} == axes
    values = {name: recipes.recipe_of(draw, shape, np.dtype(dtype)) for name, (draw, shape) in wanted.items()}
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 3})
    with tf.compat.v1.Session(graph=tf.Graph(), config=config) as session:
        moving = transfers.Transfers(session, placement, lambda doing, call, *arguments: call(*arguments))
        with monkeypatch.context() as nothing_sent:
            nothing_sent.setattr(transfers.Piece, "of", None)
            moving.load(item.variables, values)
        found = dict(moving.read_each(item.variables))
    for name, (draw, shape) in wanted.items():
        np.testing.assert_array_equal(found[name], draw(shape, dtype), err_msg=name)
