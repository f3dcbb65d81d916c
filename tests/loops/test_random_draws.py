"""Random numbers that a marked function draws."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.loop_steps import gradients
from tests.support.loops import Net, batches, examples, run_marked, run_plain, values


def _draws(front: Any) -> Any:
    net, dropout = Net(), keras.layers.Dropout(0.3)
    generator = tf.random.Generator.from_seed(3)

    @front.function
    def step(x, y):
        x = dropout(x + 0.1 * generator.normal(tf.shape(x), dtype=tf.float64), training=True)
        x = x + tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=tf.float64)
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend(found)
        return loss

    seen = [step(x, y) for x, y in batches(*examples())]
    return {"seen": seen, "weights": values(net.variables, dropout.variables), "generator": generator.state.numpy()}


def test_one_replica_draws_the_numbers_of_one_device():
    expected, actual = run_plain(_draws), run_marked(_draws, "PS", 1)
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, actual[name], err_msg=name)


@pytest.mark.parametrize("strategy", ["PS", "AllReduce"])
def test_replicas_draw_numbers_of_their_own_and_leave_one_devices_state(strategy: str):
    expected, actual = run_plain(_draws), run_marked(_draws, strategy, 2)
    assert not np.array_equal(expected["seen/0"], actual["seen/0"])
    np.testing.assert_array_equal(expected["weights/3"], actual["weights/3"])  # the state of the dropout's generator
    again = run_marked(_draws, strategy, 2)
    assert all(np.array_equal(value, again[name]) for name, value in actual.items())
