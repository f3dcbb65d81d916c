"""A trace that fails: it leaves everything as it was, and the error says where it failed, and why a size is None."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.loops import EVEN, Net, Plain, assert_equal_loops, autodist, batches, examples, values


def _after_a_failed_trace(front: Any) -> Any:
    net, made, fails = Net(), {}, not isinstance(front, Plain)
    optimizer = keras.optimizers.Adam(0.05)

    @front.function
    def step(x, y):
        if not made:
            # TensorFlow computes the first value in the trace, and from a function for the other one.
            made["scale"] = tf.Variable(tf.constant(2.0, tf.float64) ** 2, name="scale")
            made["shift"] = tf.Variable(lambda: tf.constant(0.5, tf.float64), name="shift")
        with tf.GradientTape() as tape:
            loss = net.loss(x / made["scale"] + made["shift"], y)
        optimizer.apply_gradients(zip(tape.gradient(loss, net.variables), net.variables, strict=True))
        if fails:
            raise ZeroDivisionError("in the first trace")
        return loss

    if fails:
        with pytest.raises(ZeroDivisionError, match="in the first trace"):
            step(*examples(6))
        fails = False
    seen = [step(x, y) for x, y in batches(*examples(), sizes=EVEN)]
    return {"seen": seen, "weights": values(net.variables, optimizer.variables, made.values())}


def test_a_loop_goes_on_exactly_after_its_first_trace_failed():
    assert_equal_loops(_after_a_failed_trace)


def _arithmetic(x):
    return tf.reduce_sum(x) * (1 / x.shape[0])


def _unstacked(x):
    return tf.add_n(tf.unstack(x))


def _counted(x):
    total = 0.0
    for index in range(x.shape[0]):
        total += x[index]
    return total


def _in_a_shape(x):
    return x[:, :3] + tf.zeros([x.shape[0], 3], x.dtype)


@pytest.mark.parametrize(
    "function, line, error",
    [(_arithmetic, 1, TypeError), (_unstacked, 1, ValueError), (_counted, 2, TypeError), (_in_a_shape, 1, TypeError)],
)
def test_a_size_that_is_none_in_the_trace_is_explained_at_the_users_line(function, line, error):
    with autodist() as front, pytest.raises(error) as found:
        front.function(lambda x: function(x))(np.ones((4, 3)))
    place, why = found.value.__notes__
    where = f'File "{__file__}", line {function.__code__.co_firstlineno + line}, in {function.__name__}\n'
    assert place.startswith(f"It was raised while a step was traced, by {where}")
    assert "take tf.shape(x)[0], or -1 in a shape" in why and why.endswith("is named by function(whole=['name']).")


def test_an_error_about_something_else_has_the_users_line_only():
    def step(x):
        return x + np.zeros(1).no_such_name

    with autodist() as front, pytest.raises(AttributeError) as found:
        front.function(step)(np.ones((4, 3)))
    (place,) = found.value.__notes__
    assert place.endswith("in step\n    return x + np.zeros(1).no_such_name")


def _sizes_in_python(front: Any) -> Any:
    @front.function(whole=["weights"])
    def step(x, weights):
        # The number of weights, and the width of the batch, are numbers of Python.
        scores = tf.add_n([weight * x[:, index] for index, weight in enumerate(tf.unstack(weights))])
        return scores * np.ones(x.shape[1]).sum()

    x, _ = examples(6)
    return [step(x[:, :width], tf.range(1.0, 1 + width, dtype=tf.float64)) for width in (3, 4, 3, 5)]


def test_sizes_that_are_no_number_of_examples_are_numbers_of_python():
    class EachSize(Plain):
        def function(self, function: Any = None, *, whole: Any = ()) -> Any:
            return tf.function(function) if function is not None else tf.function

    expected = _sizes_in_python(EachSize())
    with autodist(replicas=3) as front:
        for one, other in zip(expected, _sizes_in_python(front), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
