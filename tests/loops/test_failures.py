"""What is kept when a loop is interrupted or fails, and which calls are refused while another one runs."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError, SessionError
from tests.support.compare import assert_same, flat
from tests.support.loops import Net, Plain, autodist, batches, examples, values
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
