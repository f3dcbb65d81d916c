"""The memory of the user's variables while a session that can lose its machines has their values."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.capture import capture
from autodist_core.errors import NodeLostError
from autodist_core.runtime.example import ONE_SERVER, example_cluster
from autodist_core.runtime.interruptible import BrokenOffError
from autodist_core.runtime.recovery import backup
from autodist_core.runtime.recovery.on_disk import Kept, OnDisk, array_of
from autodist_core.runtime.recovery.recovering import RecoveringSession
from autodist_core.runtime.session import DistributedSession
from autodist_core.step.graph_item import Variable
from autodist_core.strategy import AllReduce
from autodist_core.training import Entry, TrainingState
from tests.capture.plain import dense_step, gradients_of, spec_of, trace
from tests.kernel.graphs import placed

X = np.arange(12.0).reshape(4, 3) / 10
WIDE = 50_000
RATE = 0.1


class Losing(DistributedSession):
    """A session of one server that can be lost."""

    lost = interrupted = False

    def call(self, doing, call, *arguments):
        if Losing.interrupted and doing == "the moving of variables":
            Losing.interrupted = False
            raise KeyboardInterrupt
        if Losing.lost:
            raise NodeLostError("10.0.0.2", "its agent ended")
        return super().call(doing, call, *arguments)


class Training:
    """A linear model with a large kernel and a small bias, in a session, and the same model beside it."""

    def __init__(self) -> None:
        self.variables, self.alone = self.new(), self.new()
        item = capture(trace(dense_step(self.variables), self.variables))
        self._losing = Losing(placed(item, AllReduce(), tasks=ONE_SERVER), example_cluster())
        self.session = RecoveringSession(lambda: self._losing, lambda error: None)
        self.state, self._step = TrainingState(self.session), self.session.add(item)
        self.state.watch([Entry(spec_of(name, each), each) for name, each in self.variables.items()])

    @staticmethod
    def new() -> dict[str, tf.Variable]:
        return {"w": tf.Variable(np.linspace(-1, 1, 3 * WIDE).reshape(3, WIDE)), "b": tf.Variable(np.zeros(WIDE))}

    def step(self) -> None:
        self.state.before_step()
        self.run()
        self.state.end_step()
        self.state.after_step()
        _, gradients = gradients_of(self.alone, X)
        for name, gradient in gradients.items():
            self.alone[name].assign_sub(RATE * gradient)

    def run(self) -> None:
        self._step([X], len(X))

    def raw(self, name: str) -> tf.Tensor:
        """What TensorFlow has for a variable, read in a way of which nobody is told."""
        handle = vars(self.variables[name])["_handle"]
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)

    def copies(self, name: str) -> np.ndarray:
        """The value that the session has for a variable."""
        return self._losing.read([name])[name]

    def assert_equal(self, name: str = "w") -> None:
        np.testing.assert_allclose(self.variables[name].numpy(), self.alone[name].numpy(), rtol=0, atol=1e-15)


@pytest.fixture(autouse=True)
def state_is_large(monkeypatch):
    """The backup and the variables of a small state stay in memory."""
    monkeypatch.setattr(OnDisk, "most_in_memory", 0)


@pytest.fixture
def training():
    Losing.lost = False
    made = Training()
    yield made
    made.state.release()
    made.session.close()


def test_a_large_variable_has_no_memory_until_somebody_looks(training):
    for _ in range(2):
        training.step()
        assert training.raw("b").shape == [WIDE]
        assert training.raw("w").shape.num_elements() == 0
        with pytest.raises(tf.errors.InvalidArgumentError):
            X @ training.raw("w")
        assert training.variables["w"].shape == [3, WIDE]
        assert float(tf.reduce_sum(training.variables["w"])) == pytest.approx(training.alone["w"].numpy().sum())
        training.assert_equal()
        assert training.raw("w").shape == [3, WIDE]
    training.step()
    training.state.pull_all()
    training.assert_equal()
    training.step()
    training.state.release()
    assert training.raw("w").shape == [3, WIDE]


def test_who_takes_a_copy_of_a_freed_variable_leaves_it_freed(training):
    """Such as the writer of a file, which would otherwise need the whole state once more."""
    training.step()
    training.step()
    for _ in range(2):
        training.assert_equal()
        copy = training.variables["w"].numpy()
        assert training.raw("w").shape.num_elements() == 0
        copy[...] = 0
    training.state.settle()
    training.assert_equal()
    training.variables["w"].numpy()[...] = 0  # a copy of the last safe value
    training.assert_equal()
    training.step()
    training.assert_equal()


@pytest.mark.parametrize("indices", [[2, 0], [[1], [1]], 1, tf.constant([0, 2])])
def test_some_rows_of_a_freed_variable_are_read_without_the_others(training, indices):
    training.step()
    for _ in range(2):
        rows = tf.gather(training.variables["w"], indices)
        assert training.raw("w").shape.num_elements() == 0
        np.testing.assert_allclose(rows, tf.gather(training.alone["w"], indices), rtol=1e-12)
    for wrong, said in {3: r"indices = 3 is not in \[0, 3\)", 1.0: "Tindices"}.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=said):
            tf.gather(training.variables["w"], wrong)


def test_rows_of_a_freed_variable_have_a_gradient(training):
    training.step()
    with tf.GradientTape() as tape:
        rows = tf.gather(training.variables["w"], [2, 2])
    gradient = tape.gradient(rows, training.variables["w"])
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient)[:, 0], [0, 0, 2])


def test_freed_memory_is_given_back_with_onednn():
    program = """
import re, tensorflow as tf
from autodist_core.give_back import give_back
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
kept = tf.ones([1 << 24])
values = [tf.ones([1 << 24]) for _ in range(4)]
before = resident()
del values
freed = resident()
give_back([1 << 26] * 4)
print(before - freed < 100, before - resident() > 200, float(tf.reduce_sum(kept)) == 1 << 24)
"""
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True"] * 3


def test_between_two_calls_the_machine_of_the_program_has_the_state_once(training):
    """The session's own copies of a large variable are freed, and are there again when a step needs them."""
    for steps in (2, 3):
        for _ in range(steps):
            training.step()
        training.session.settle()
        training.session.rest()
        with pytest.raises(BrokenOffError, match="does not exist"):
            training.copies("w")
        assert training.copies("b").size == WIDE
        training.state.pull_all()
        training.assert_equal()
        training.state.release()
        training.state.resume()
    training.variables["w"].assign_add(np.ones((3, WIDE)))
    training.alone["w"].assign_add(np.ones((3, WIDE)))
    training.step()
    training.session.settle()
    training.session.rest()  # after a single step the copies stay
    assert training.copies("w").size == 3 * WIDE
    training.assert_equal()


def test_an_interrupt_while_the_copies_are_written_again_changes_nothing(training):
    for _ in range(2):
        training.step()
    training.session.settle()
    training.session.rest()
    training.state.before_step()
    Losing.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        training.run()
    training.state.end_step()
    training.session.settle()
    training.assert_equal()
    training.step()
    training.assert_equal()


def test_what_a_callback_writes_into_a_freed_variable_counts(training):
    training.step()
    for variables in (training.variables, training.alone):
        variables["w"].assign_add(np.ones((3, WIDE)))
    training.step()
    training.assert_equal()


def test_a_lost_machine_leaves_the_last_safe_state(training):
    training.step()
    training.session.settle()
    safe = {name: each.numpy() for name, each in training.alone.items()}
    training.step()
    Losing.lost = True
    training.state.release()
    np.testing.assert_allclose(training.variables["w"].numpy(), safe["w"], rtol=0, atol=1e-15)


@pytest.mark.parametrize("look", [tf.identity, lambda small: tf.gather(small, [1, 0])], ids=["whole", "rows"])
def test_what_was_only_looked_at_goes_back_with_the_rest(training, look, monkeypatch):
    monkeypatch.setattr(backup, "_LEAST_PAUSE", 3600.0)
    training.state.stays_away, first = True, {name: each.numpy() for name, each in training.variables.items()}
    training.step()
    look(training.variables["b"])
    training.state.settle(stays=True)
    training.state.pull_all()
    training.state.release()
    look(training.variables["b"])
    Losing.lost = True
    with pytest.raises(NodeLostError, match="holds the state after training step 0"):
        training.state.settle()
    training.state.go_back()
    for name, value in first.items():
        np.testing.assert_array_equal(training.variables[name].numpy(), value)


def test_another_thread_that_cannot_wait_for_a_step_sees_the_last_safe_value(training):
    training.step()
    training.session.settle()
    safe = training.alone["w"].numpy()
    training.state.before_step()  # a step that does not end
    seen = ThreadPoolExecutor().submit(training.variables["w"].numpy).result(60)
    np.testing.assert_allclose(seen, safe, rtol=0, atol=1e-15)
    training.state.end_step()


def test_a_place_in_the_file_is_taken_again_when_nobody_has_an_array_of_it():
    on_disk, values = OnDisk(), [np.full(1 << 17, number) for number in (1.0, 2.0, 3.0)]
    first = on_disk.keep(values[0])
    array = array_of(first)
    del first
    second = on_disk.keep(values[1])
    assert on_disk.size == 2 * values[0].nbytes
    assert array[0] == array[-1] == 1.0
    del array
    third = on_disk.keep(values[2])
    assert on_disk.size == 2 * values[0].nbytes
    assert (array_of(second)[-1], array_of(third)[-1]) == (2.0, 3.0)
    array_of(third)[0] = 4.0
    assert array_of(third)[0] == 3.0


def test_without_room_on_the_disk_a_backup_is_in_memory(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    kept = OnDisk().keep(np.ones(1 << 18))
    assert not isinstance(kept, Kept)
    assert array_of(kept).sum() == 1 << 18
    words = f"2 MiB of a backup are kept in memory, since the folder for them, {tmp_path / 'missing'}, takes no more: "
    assert caplog.messages[0].startswith(words)
    assert caplog.messages[0].endswith("The environment variable TMPDIR may name another folder.")


def test_a_value_that_came_home_is_updated_in_place():
    """An array of NumPy's would be copied at the first update, and stay until the call has ended."""
    entry = Entry(Variable("w", (WIDE,), "float64"), tf.Variable(tf.zeros([WIDE], tf.float64)))
    entry.write(np.ones(WIDE))

    def address():
        return entry.view().ctypes.data

    before = address()
    entry.tf_variable.assign_add(tf.ones([WIDE], tf.float64))
    assert address() == before and entry.view()[0] == 2


def test_values_of_several_threads_have_places_of_their_own(monkeypatch):
    monkeypatch.setattr(OnDisk, "most_in_memory", 0)
    usual, values = sys.getswitchinterval(), [np.full(1 << 17, float(number)) for number in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            found = [[*threads.map(OnDisk().keep, values)] for _ in range(40)]
    finally:
        sys.setswitchinterval(usual)
    for kept in found:
        assert all(np.array_equal(array_of(each), value) for each, value in zip(kept, values, strict=True))
