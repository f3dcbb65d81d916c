"""When a marked function is traced again: what counts as another argument."""

import numpy as np
import tensorflow as tf

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


class Count:
    """How often a function was traced."""

    value = 0


def test_a_number_of_python_is_another_argument_if_it_is_another_number():
    traces = Count()
    with autodist() as front:

        @front.function
        def divided(x, number):
            traces.value += 1
            return x / number

        x = np.ones(2)
        found = [float(divided(x, number)[0]) for number in (0.0, -0.0, 2.0, True, 1, float("nan"), -float("nan"))]
        assert found[:5] == [np.inf, -np.inf, 0.5, 1.0, 1.0] and all(map(np.isnan, found[5:]))
        assert traces.value == 6


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
