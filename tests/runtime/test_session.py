"""The session: how a batch is cut, what a copy is loaded with, and what comes back."""

import contextlib
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from autodist_core import GraphItem
from autodist_core.capture import capture
from autodist_core.errors import SessionError
from autodist_core.interrupts import ignore_repeated_interrupts
from autodist_core.kernel import inference
from autodist_core.runtime.batch_slices import slices
from autodist_core.runtime.local.session import LocalSession
from autodist_core.runtime.local.step import LocalStep
from autodist_core.seams.table import CALL_FUNCTION
from autodist_core.step.graph_item import Variable
from autodist_core.strategy import PS, AllReduce
from autodist_core.training.in_graphs import _wrapped
from tests.capture.plain import dense_step, dense_variables, spec_of, trace
from tests.kernel.graphs import copies_item, dense_item, machine, placed
from tests.support.models import DENSE, dense_data, ready
from tests.support.training import distributed
from tests.support.waiting import until

NAMES = ("localhost:CPU:0", "localhost:CPU:1", "localhost:CPU:2")
X = [tf.TensorSpec((None, 3), tf.float64, "x")]


@given(st.integers(0, 200), st.integers(1, 40))
def test_batches_are_cut_as_numpy_cuts_them(total: int, parts: int):
    expected = np.array_split(np.arange(total), parts)
    assert [list(range(start, stop)) for start, stop in slices(total, parts)] == [list(part) for part in expected]


def _identity_step(tracer, x) -> list:
    return [tf.identity(x)]


def test_rows_come_back_in_the_order_of_the_batch():
    item = capture(trace(_identity_step, {}, X, concat_outputs=True))
    session = LocalSession(inference(NAMES))
    step = session.add(item)
    for total in (1, 2, 3, 4, 7):
        x = np.arange(3.0 * total).reshape(total, 3)
        (found,) = step([x], total)
        np.testing.assert_array_equal(found, x)
    assert isinstance(step, LocalStep)
    session.close()


def test_batches_of_the_usual_size_have_a_graph_of_their_own():
    item = capture(trace(_identity_step, {}, X, concat_outputs=True))
    session = LocalSession(inference(NAMES))
    step = session.add(item, usual=7)
    for total, expected in ((7, [[3, 3], [2, 3], [2, 3]]), (8, []), (7, [[3, 3], [2, 3], [2, 3]]), (2, [])):
        x = np.arange(3.0 * total).reshape(total, 3)
        np.testing.assert_array_equal(step([x], total)[0], x)
        shapes = [node.attr["shape"].shape for node in step.graph.graph_def.node if node.op == "EnsureShape"]
        assert [tf.TensorShape(shape).as_list() for shape in shapes] == expected
    session.close()


def test_a_closed_session_says_so():
    item = dense_item()
    session = LocalSession(placed(item, AllReduce()))
    session.add(item)
    for _ in range(2):
        session.close()
        for use in (lambda: session.read(["w"]), lambda: session.load({"b": np.zeros(2)}), lambda: session.read([])):
            with pytest.raises(SessionError, match=r"^this distributed session is closed; call fit again"):
                use()


def _holding(variables: dict[str, tf.Variable], described: dict[str, Variable]) -> tuple[LocalSession, LocalStep]:
    """A session of three replicas, and a step that returns every copy of these variables, replica 0's first."""
    session = LocalSession(inference(NAMES))
    return session, session.add(copies_item(variables, X, described))


def _copies(step: LocalStep) -> list[np.ndarray]:
    return [value.numpy() for value in step([np.zeros((3, 3))], 3)]


DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_every_type_comes_back_as_it_was_loaded(dtype: str, shape: tuple[int, ...]):
    random = np.random.default_rng(6)
    value = random.integers(0, 100, shape) if "int" in dtype else random.normal(size=shape)
    if dtype == "bool":
        value = value > 0
    value = np.asarray(value).astype(tf.as_dtype(dtype).as_numpy_dtype)
    with tf.device("CPU:0"):
        variables = {"v": tf.Variable(tf.zeros(shape, dtype))}
    session, step = _holding(variables, {"v": spec_of("v", variables["v"])})
    session.load({"v": value})
    (found,) = session.read(["v"]).values()
    assert found.dtype == value.dtype and found.shape == value.shape and found.tobytes() == value.tobytes()
    (copies,) = _copies(step)
    assert [copy.tobytes() for copy in copies] == [value.tobytes()] * 3
    session.close()


def test_reads_are_by_name_in_any_order_and_know_what_there_is():
    variables = {name: tf.Variable(np.zeros(2)) for name in ("a", "b", "c")}
    session, _ = _holding(variables, {name: spec_of(name, variable) for name, variable in variables.items()})
    assert session.known == ("a", "b", "c")
    session.load({"c": np.array([3.0, 3.0]), "a": np.array([1.0, 1.0]), "b": np.array([2.0, 2.0])})
    session.load({})
    assert {name: value[0] for name, value in session.read(["b", "c", "a"]).items()} == {"b": 2.0, "c": 3.0, "a": 1.0}
    assert session.read([]) == {}
    session.close()


def test_sums_start_at_zero_on_all_replicas_but_the_first():
    variables = {"sum": tf.Variable(np.zeros(2)), "mean": tf.Variable(np.zeros(2))}
    described = {name: spec_of(name, variable, "metric", name) for name, variable in variables.items()}
    session, step = _holding(variables, described)
    session.load({"sum": np.array([5.0, 6.0]), "mean": np.array([7.0, 8.0])})
    sums, means = _copies(step)
    np.testing.assert_array_equal(sums, [[5.0, 6.0], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(means, [[7.0, 8.0]] * 3)
    session.close()


@pytest.mark.parametrize(
    "dtype, seed",
    [("int64", 0), ("int64", 1337), ("int64", -5), ("int64", 2**63 - 1), ("uint32", 7), ("uint32", 2**32 - 1)],
)
def test_the_state_of_a_seed_generator_is_the_same_on_every_replica(dtype: str, seed: int):
    variables = {"seed": tf.Variable(np.zeros(2, dtype))}
    session, step = _holding(variables, {"seed": spec_of("seed", variables["seed"], "seed")})
    session.load({"seed": np.array([seed, 9], dtype)})
    (copies,) = _copies(step)
    assert [copy.tolist() for copy in copies] == [[seed, 9]] * 3
    assert session.read(["seed"])["seed"].tolist() == [seed, 9]
    session.close()


def test_steps_of_one_session_share_its_state():
    """Two captures of one step train the same variables, one after the other."""
    item = dense_item()
    session = LocalSession(placed(item, AllReduce(), machine(cpus=3)))
    steps = [session.add(item), session.add(GraphItem.deserialize(item.serialize()))]
    session.load({"w": np.zeros((3, 2)), "b": np.zeros(2)})
    for index, step in enumerate((*steps, *steps)):
        step([np.zeros((4, 3))], 4)
        # The gradient of mean((b - 1)^2) over two columns is b - 1; the rate is 0.1.
        expected = 1.0 - 0.9 ** (index + 1)
        np.testing.assert_allclose(session.read(["b"])["b"], [expected] * 2, rtol=1e-14, atol=0.0)
    session.close()


def test_a_session_whose_closing_is_interrupted_is_closed():
    """Ctrl-C comes while the close waits for a replica, whose thread ends once it is done."""
    slow, begun, go_on = threading.Event(), threading.Event(), threading.Event()
    variables = dense_variables()

    def wait(x: np.ndarray) -> np.ndarray:
        if slow.is_set():
            begun.set()
            assert go_on.wait(20)
        return x

    def training(tracer, x) -> list:
        return dense_step(variables)(tracer, tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape))

    item = capture(trace(training, variables))
    session = LocalSession(placed(item, PS(staleness=2)))
    step = session.add(item)
    session.load({"w": np.zeros((3, 2)), "b": np.zeros(2)})
    step([np.zeros((4, 3))], 4)
    slow.set()
    step([np.zeros((4, 3))], 4)
    assert begun.wait(20)
    progress = step._progress

    def interrupt() -> None:
        until(lambda: progress.failure is not None)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with ignore_repeated_interrupts():
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            session.close()
    thread.join()
    with pytest.raises(SessionError, match="is closed"):
        session.read(["w"])
    go_on.set()
    until(lambda: not any(each.name.startswith("autodist-localhost") for each in threading.enumerate()))
    session.close()


@pytest.mark.parametrize("strategy", ["AllReduce", "PS"])
@pytest.mark.parametrize("share_memory", [False, True])
def test_a_step_is_one_call_of_a_function(strategy: str, share_memory: bool):
    """Each call costs some tenths of a millisecond. Slices, metrics and results must not add one."""
    calls: list[Any] = []

    def counting(call_function: Any) -> Any:
        def counted(self, name, tensor_inputs, num_outputs):
            calls.append(name)
            return call_function(self, name, tensor_inputs, num_outputs)

        return counted

    def calls_of(steps: int) -> int:
        data, model = dense_data(6 * steps), ready(DENSE.build(), "adam", "mse", metrics=["mae"])
        with distributed(model, strategy, share_memory=share_memory) as front:
            front.fit(data.x, data.y, batch_size=6, verbose=0)  # makes the graph
            calls.clear()
            # Around whatever else is around the function, as a training that an earlier test has left behind.
            with _wrapped(CALL_FUNCTION, counting):
                front.fit(data.x, data.y, batch_size=6, epochs=2, verbose=0)
        return sum("function" in str(name) for name in calls)

    assert calls_of(9) - calls_of(4) == 2 * (9 - 4)


@pytest.mark.parametrize("share_memory", [False, True])
def test_no_step_turns_a_tensor_into_an_array(share_memory: bool, monkeypatch):
    """A batch stays a tensor, and a result too, until somebody reads it: nobody waits for a device."""
    converted: list[str] = []
    for kind in type(tf.constant(0)).__mro__:
        for name in ("numpy", "__array__", "_numpy", "_numpy_internal", "__float__"):
            if name in vars(kind) and callable(method := vars(kind)[name]):

                def counting(self, *arguments, method=method, name=name, **named):
                    converted.append(name)
                    return method(self, *arguments, **named)

                with contextlib.suppress(TypeError):  # a type of C
                    monkeypatch.setattr(kind, name, counting)

    def conversions_of(steps: int) -> int:
        data, model = dense_data(6 * steps), ready(DENSE.build(), "adam", "mse", metrics=["mae"])
        dataset = tf.data.Dataset.from_tensor_slices((data.x, data.y)).batch(6)
        with distributed(model, "AllReduce", share_memory=share_memory) as front:
            front.fit(dataset, shuffle=False, verbose=0)
            converted.clear()
            front.fit(dataset, epochs=2, shuffle=False, verbose=0)
            found = len(converted)
            assert tf.constant(1.0).numpy() == 1.0 and len(converted) > found
        return found

    assert conversions_of(9) == conversions_of(4)
