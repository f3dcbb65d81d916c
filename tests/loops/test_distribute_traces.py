"""What run() takes from somebody's trace and leaves there, and how often its functions are traced."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.distributed import SUM, numbers, replicas, replicas_on
from tests.support.loops import SEED, descend


def test_a_trace_sees_and_changes_the_variables_between_runs():
    weight = tf.Variable(1.0, dtype=tf.float64)
    with replicas(count=2) as strategy:

        def step(x):
            return descend(lambda: tf.reduce_sum(x * weight), weight, 0.125)

        @tf.function
        def twice(batches):
            seen = tf.TensorArray(tf.float64, 0, dynamic_size=True)
            for batch in batches:
                strategy.run(step, args=(batch,))
                seen = seen.write(seen.size(), weight.read_value())
                weight.assign_add(0.5)
            return seen.stack()

        batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(np.ones(8)).batch(4))
        assert twice(batches).numpy().tolist() == [0.5, 0.5]
        assert weight.numpy().item() == 1.0
        weight.assign(3.0)
        assert twice(batches).numpy().tolist() == [2.5, 2.5]


def test_a_function_uses_tensors_of_the_trace_around_it():
    weight = tf.Variable(np.ones(3), name="weight")
    kept = []
    with replicas(count=2) as strategy:

        @tf.function
        def epoch(batches, rate, offsets):
            total, scaled = tf.constant(0.0, tf.float64), 2.0 * rate
            for batch in batches:

                def step(x):
                    # `total` is this round's tensor.
                    descend(lambda: tf.reduce_sum(x[:, tf.newaxis] * (weight + offsets)) * total, weight, scaled)  # noqa: B023
                    return tf.reduce_sum(x)

                total += strategy.reduce(SUM, strategy.run(step, args=(batch,)), axis=None)
            return total

        for rate in (0.125, 0.25):
            weight.assign(np.ones(3))
            batches = strategy.experimental_distribute_dataset(numbers(5, 3))
            assert float(epoch(batches, tf.constant(rate, tf.float64), tf.zeros(3, tf.float64))) == 15.0
            assert weight.numpy().tolist() == [1.0 - 2.0 * rate * 9.0 * 6.0] * 3

        @tf.function
        def keeping(x):
            kept.append(x)
            return strategy.run(lambda: kept[0] + 1.0)

        assert float(keeping(tf.constant(1.0)).values[1]) == 2.0
        with pytest.raises(CaptureError, match=r"uses 'x:0' of a traced function.*run\(fn, args"):
            strategy.run(lambda: kept[0] + 1.0)
        with pytest.raises(CaptureError, match=r"uses 'x:0' of a traced function"):
            keeping(tf.constant([1.0]))


class Count:
    """How often a function was traced."""

    value = 0


def test_a_function_that_is_made_anew_for_each_call_is_traced_once():
    traces = Count()
    with replicas_on(numbers(4)) as (strategy, batch):

        def counted(x, factor):
            traces.value += 1
            return x * factor

        def multiplied(factor):
            return lambda x: counted(x, factor)

        def total(function):
            return strategy.reduce(SUM, strategy.run(function, args=(batch,)), axis=0).numpy().item()

        assert [total(lambda x: counted(x, 2.0)) for _ in range(70)] == [20.0] * 70
        assert traces.value == 1
        assert [total(multiplied(factor)) for factor in (3.0, 4.0, 3.0, 4.0)] == [30.0, 40.0, 30.0, 40.0]
        assert traces.value == 3
        array, numbers_in_a_list = np.array(1.0), [5.0]
        for value in (1.0, 2.0):
            array[...] = numbers_in_a_list[0] = value
            assert total(lambda x: counted(x, array.item())) == 10.0 * value
            assert total(lambda x: counted(x, *numbers_in_a_list)) == 10.0 * value


CELL = """
weight = tf.Variable(np.ones(2) * start)

def rated(x):
    return settings.rate * scale[0] * x

class Loss:
    def __init__(self):
        self.power = power

    def __call__(self, x):
        return tf.add_n([tf.reduce_sum(rated(x) * weight[0] ** self.power) for _ in range(1)])

loss_of = loss_of if power == 2.0 else Loss()
loss_of.power = power

def step(x):
    with tf.GradientTape() as tape:
        loss = loss_of(x)
    weight.assign_sub(0.125 * tape.gradient(loss, weight))
    return loss

results.append(total(strategy.run((lambda x: step(x)) if is_lambda else step, args=(batch,))))
"""


@pytest.mark.parametrize("is_lambda", [False, True], ids=["def", "lambda"])
def test_a_cell_that_is_run_again_runs_what_its_names_mean_now(is_lambda):
    settings, cell = SimpleNamespace(rate=1.0), compile(CELL, "cell", "exec")
    with replicas_on(numbers(4)) as (strategy, batch):
        known = {"tf": tf, "np": np, "strategy": strategy, "batch": batch, "settings": settings, "results": [],
                 "is_lambda": is_lambda, "start": 1.0, "scale": np.array([1.0]), "power": 1.0,
                 "total": lambda value: float(strategy.reduce(SUM, value, None))}
        for changed in ({}, {"start": 2.0}, {"scale": np.array([3.0])}, {"power": 2.0}):
            known |= changed
            exec(cell, known)
            rate, power, start = known["scale"][0], known["power"], known["start"]
            assert known["results"][-1] == 10.0 * rate * start**power
            assert known["weight"].numpy().tolist() == [start - 1.25 * rate * power * start ** (power - 1.0), start]
        settings.rate = 2.0
        exec(cell, known)
        assert known["results"][-1] == 2.0 * known["results"][-2]


def test_a_function_inside_a_trace_sees_what_keras_keeps_for_each_thread():
    seen = []

    def draw():
        seen.append(keras.config.dtype_policy().name)
        return keras.random.normal((3,))

    def drawn(traced):
        keras.utils.set_random_seed(SEED)
        with replicas(count=2) as strategy:
            run = tf.function(lambda: strategy.run(draw)) if traced else lambda: strategy.run(draw)
            return strategy.experimental_local_results(run())[0].numpy().tolist()

    keras.config.set_dtype_policy("mixed_bfloat16")
    eager, traced = drawn(False), drawn(True)
    assert set(seen) == {"mixed_bfloat16"}
    assert eager == traced
