"""When a marked function is traced again: what counts as another argument."""

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.capture.gradients.recording import recorded
from autodist_core.seams.seam import owner
from autodist_core.seams.table import VARIABLE_HANDLE
from tests.support.loops import autodist


def test_another_object_is_another_argument_even_in_the_place_of_one_that_is_gone():
    class Factor:
        def __init__(self, value: float) -> None:
            self.value = value

    with autodist() as front:
        scaled = front.function(lambda x, factor: x * factor.value)
        assert [scaled(np.ones(2), Factor(value)).numpy().tolist() for value in (2.0, 3.0, 4.0)] == [
            [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]
        ]  # fmt: skip


def test_a_number_of_python_is_another_argument_if_it_is_another_number():
    traces = []
    with autodist() as front:

        @front.function
        def divided(x, number):
            traces.append(x)
            return x / number

        x = np.ones(2)
        found = [float(divided(x, number)[0]) for number in (0.0, -0.0, 2.0, True, 1, float("nan"), -float("nan"))]
        assert found[:5] == [np.inf, -np.inf, 0.5, 1.0, 1.0] and all(map(np.isnan, found[5:]))
        assert len(traces) == 6


def test_a_function_with_many_traces_is_named(caplog):
    with autodist() as front:
        scaled = front.function(lambda x, factor: x * factor)
        for factor in range(12):
            scaled(np.ones(2), float(factor))
    (record,) = [each for each in caplog.records if "was traced" in each.getMessage()]
    line = test_a_function_with_many_traces_is_named.__code__.co_firstlineno + 2
    assert record.getMessage().startswith(f"<lambda> ({__file__}:{line}) was traced 10 times; ")
    assert record.getMessage().endswith("numbers that change as tensors, among the arguments.")


def test_a_python_value_that_is_no_argument_is_that_of_the_trace_as_in_a_tf_function():
    class Trainer:
        def __init__(self) -> None:
            self.rate = 2.0

        def step(self, x):
            return self.rate * x

    trainer, other = Trainer(), Trainer()
    with autodist() as front:
        marked, traced = front.function(Trainer.step), tf.function(Trainer.step)
        found = []
        for rate in (2.0, 3.0):
            trainer.rate = other.rate = rate
            found.append([float(function(trainer, np.ones(2))[0]) for function in (marked, traced)])
        assert found == [[2.0, 2.0], [2.0, 2.0]]
        assert float(marked(other, np.ones(2))[0]) == 3.0  # another object is another argument


def test_a_hook_that_another_thread_holds_works_after_it_is_gone():
    variable, kind = tf.Variable(3.0), owner(VARIABLE_HANDLE.owner)
    before, gradient = vars(kind)[VARIABLE_HANDLE.name], tf.GradientTape.gradient
    with tf.Graph().as_default(), recorded():
        held, held_gradient = vars(kind)[VARIABLE_HANDLE.name], tf.GradientTape.gradient
        assert held is not before and held_gradient is not gradient
    assert vars(kind)[VARIABLE_HANDLE.name] is before and tf.GradientTape.gradient is gradient
    with tf.GradientTape() as tape:
        loss = variable**2
    assert held.fget(variable) is variable.handle
    assert float(held_gradient(tape, loss, variable)) == 6.0


@pytest.mark.parametrize(
    ("given", "is_handed_in"),
    [
        (lambda: None, False), (lambda: [2.0], False), (lambda: [tf.ones(())], False), (lambda: [tf.ones(3)], True),
        (lambda: [tf.ragged.constant([[1.0], [2.0, 3.0]])], True),
    ],
    ids=["nothing", "a number of Python", "a number", "a vector", "ragged"],
)  # fmt: skip
def test_what_a_tape_begins_with_is_noted_if_it_is_no_number(given, is_handed_in):
    """Its shape may not fit, so that any gradient may fail."""
    with tf.Graph().as_default() as graph, recorded() as recording:
        values = given()
        before = len(graph.get_operations())
        recording.note_handed_in(values)
        assert len(graph.get_operations()) == before
    assert recording.handed_in == is_handed_in
