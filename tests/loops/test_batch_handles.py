"""Handles of batches, which stand for the next batch at each call, and batches of a dataset."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.loops import Net, assert_equal_loops, autodist, examples, run_plain, values


def numbers(stop: int, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(stop).map(lambda each: (tf.cast(each, tf.float64), 2 * each)).batch(size)


def test_a_handle_means_the_next_batch_until_the_end():
    with autodist(replicas=3) as front, front.scope():
        x, y = tf.compat.v1.data.make_one_shot_iterator(numbers(10, 4)).get_next()
        step = front.function(lambda x, y: (x + 1.0, y))
        seen = [step(x, y) for _ in range(3)]
        assert [each.numpy().tolist() for each, _ in seen] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
        assert [each.numpy().tolist() for _, each in seen] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
        with pytest.raises(tf.errors.OutOfRangeError, match="no more data"):
            step(x, y)


def test_two_batches_of_one_iterator_are_drawn_in_turn():
    with autodist() as front, front.scope():
        iterator = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(12).batch(2))
        one, other = iterator.get_next(), iterator.get_next()
        step = front.function(lambda pair: pair["one"] * 100 + pair["other"])
        assert step({"one": one, "other": other}).numpy().tolist() == [2, 103]
        assert step({"one": one, "other": one}).numpy().tolist() == [404, 505]
        assert step({"one": one, "other": other}).numpy().tolist() == [608, 709]


def test_a_batch_is_the_next_one_until_a_call_uses_it():
    with autodist() as front, front.scope():
        one, other = (
            tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(start, start + 6).batch(2)).get_next()
            for start in (0, 10)
        )

        @front.function
        def step(x, y, gives=None):
            return x + y if gives is None else gives(x)

        step.plan(one, other)
        step.verify(one, other, steps=2)
        with pytest.raises(CaptureError, match="result 0 of the function"):
            step(one, other, tf.linalg.diag)
        with pytest.raises(CaptureError, match="disagree on the number of examples"):
            step(one, other, tf.ones(3))
        assert step(one, other).numpy().tolist() == [10, 12]
        with pytest.raises(tf.errors.InvalidArgumentError, match="a bad batch"):
            step(one, other, lambda x: tf.debugging.assert_equal(x, x + 1, message="a bad batch"))
        assert step(one, other).numpy().tolist() == [18, 20]


def test_the_iterators_are_tensorflows_own_again_after_the_scope():
    own = tf.compat.v1.data.make_one_shot_iterator
    with autodist() as front:
        with pytest.raises(KeyError), front.scope():
            assert tf.compat.v1.data.make_one_shot_iterator is not own
            handle = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).batch(2)).get_next()
            raise KeyError
        assert tf.compat.v1.data.make_one_shot_iterator is own
        assert front.function(lambda x: x + 1)(handle).numpy().tolist() == [1, 2]


def test_a_handle_is_no_tensor():
    with autodist() as front, front.scope():
        handle = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).batch(2)).get_next()
        uses = lambda: handle + 1, lambda: tf.reduce_sum(handle), lambda: np.asarray(handle), lambda: float(handle)
        for use in uses:
            with pytest.raises(TypeError):
                use()


def _eagerly(front: Any) -> Any:
    net = Net()

    @front.function
    def step(batch):
        x, y = batch
        return net.train(lambda: net.loss(x, y))

    data = tf.data.Dataset.from_tensor_slices(examples(20)).batch(6)
    return {"seen": [[step(batch) for batch in data] for _ in range(2)], "weights": values(net.variables)}


def test_batches_of_a_dataset():
    assert len(assert_equal_loops(_eagerly)) == len(run_plain(_eagerly)) == 8 + 3
