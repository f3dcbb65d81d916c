"""What is kept when a loop or a trace is interrupted or fails, and which calls are refused while another one runs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError, SessionError
from tests.support.compare import assert_same, flat
from tests.support.loops import EVEN, Net, Plain, assert_equal_loops, autodist, batches, examples, values
from tests.support.programs import printed_by
from tests.support.waiting import HANGS

STRATEGIES = ["PS", "AllReduce", "PartitionedPS"]


def descending(front, net, check=lambda x: None):
    @front.function
    def step(x, y):
        check(x)
        return net.train(lambda: net.loss(x, y))

    return step


def asserts_finite(x):
    tf.debugging.assert_all_finite(x, "an example is not finite")


def raises_on_large(x):
    def check(part):
        if np.max(part, initial=0.0) > 100.0:
            raise ZeroDivisionError("too large")
        return part

    tf.numpy_function(check, [x], tf.float64)


FAILING = {
    "an assertion": (asserts_finite, np.nan, tf.errors.InvalidArgumentError,
                     r"(?s)in step: an example is not finite.*made at File .*test_failures.py.* in asserts_finite: "),
    "Python": (raises_on_large, 1e3, tf.errors.UnknownError,
               r"(?s)in step: ZeroDivisionError: too large.*test_failures.py.* in raises_on_large: tf.numpy_function"),
}  # fmt: skip


@pytest.mark.quick("an assertion-PartitionedPS", "Python-AllReduce")
@pytest.mark.parametrize(
    ("how", "strategy"), [("an assertion", "PartitionedPS"), ("Python", "AllReduce"), ("Python", "PS")]
)
def test_a_step_that_fails_changes_nothing_and_the_loop_goes_on(how: str, strategy: str):
    check, bad, error, words = FAILING[how]
    net, alone = Net(), Net()
    on_one_device = descending(Plain(), alone)
    with autodist(strategy, replicas=3) as front:
        step = descending(front, net, check)
        for turn, (x, y) in enumerate(batches(*examples())):
            if turn in (0, 2):
                spoilt = x.numpy()
                spoilt[-1, 0] = bad
                with pytest.raises(error, match=words):
                    step(spoilt, y)
                assert_same(flat(values(alone.variables)), flat(values(net.variables)))
            np.testing.assert_allclose(float(step(x, y)), float(on_one_device(x, y)), rtol=1e-12)
    assert_same(flat(values(alone.variables)), flat(values(net.variables)))


def test_an_error_while_a_function_is_traced_changes_nothing():
    net = Net()
    with autodist(replicas=3) as front:

        @front.function
        def step(x, y, fails=False):
            loss = net.train(lambda: net.loss(x, y))
            if fails:
                raise ZeroDivisionError("while it is traced")
            return loss

        x, y = examples(6)
        first = float(step(x, y))
        before = values(net.variables)
        with pytest.raises(ZeroDivisionError, match="while it is traced"):
            step(x, y, fails=True)
        assert_same(flat(before), flat(values(net.variables)), 0.0)
        assert 0.0 < float(step(x, y)) < first


def test_a_marked_function_within_a_marked_function_is_refused():
    weight = tf.Variable(1.0)
    with autodist() as front:
        inner = front.function(lambda x: x * weight)

        @front.function
        def outer(x):
            return inner(x) + 1.0

        with pytest.raises(SessionError, match=r"<lambda> is called while outer .*needs no mark of its own"):
            outer(np.ones(3, "float32"))
        assert inner(np.ones(3, "float32")).numpy().tolist() == [1.0, 1.0, 1.0]


def test_a_marked_function_within_somebodys_trace_is_refused():
    with autodist() as front:
        marked = front.function(lambda x: x + 1.0)

        @tf.function(autograph=False)
        def epoch(x):
            return marked(x)

        with pytest.raises(CaptureError, match=r"<lambda> is called while a tf.function is traced.*runs as a graph"):
            epoch(np.ones(3))
        assert marked(np.ones(3)).numpy().tolist() == [2.0, 2.0, 2.0]


def test_a_second_thread_is_refused_and_the_first_one_goes_on():
    weight, inside, leave = tf.Variable(1.0), threading.Event(), threading.Event()

    def wait(x):
        inside.set()
        assert leave.wait(HANGS)
        return x

    with autodist(replicas=1) as front, ThreadPoolExecutor() as pool:

        @front.function
        def slow(x):
            return tf.reduce_mean(tf.numpy_function(wait, [x], tf.float32)) * weight

        result = pool.submit(lambda: float(slow(np.full(3, 2.0, "float32"))))
        assert inside.wait(HANGS)
        try:
            with pytest.raises(SessionError, match="fast is called while slow of the same AutoDist runs"):

                @front.function
                def fast(x):
                    return x

                fast(np.ones(2))
        finally:
            leave.set()
        assert result.result(HANGS) == 2.0
        assert fast(np.ones(2)).numpy().tolist() == [1.0, 1.0]


@pytest.mark.quick("PS-10")
@pytest.mark.parametrize("strategy, interrupts", [("PS", 10), ("AllReduce", 40), ("PartitionedPS", 40)])
def test_interrupted_again_and_again(strategy: str, interrupts: int):
    printed_by("interrupted", interrupts, "loop", strategy)


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
