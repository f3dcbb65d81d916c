"""What an update of a loop may read besides gradients, and gradients that are accumulated over calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import NotYetError
from autodist_core.strategy import PS
from tests.support.loop_steps import gradients
from tests.support.loops import Net, assert_equal_loops, batches, examples, run_marked, values

STRATEGIES = ["PS", "AllReduce", "PartitionedPS"]


def _rates(front: Any) -> Any:
    net = Net()

    @front.function
    def step(x, y, rate):
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend(found, rate)
        return loss, rate * 2.0

    seen = [
        step(x, y, tf.constant(0.3 / (1 + turn), tf.float64)) for turn, (x, y) in enumerate(batches(*examples()))
    ]
    return {"seen": seen, "weights": values(net.variables)}


@pytest.mark.quick("PartitionedPS", "AllReduce")
@pytest.mark.parametrize("strategy", ["PS", "AllReduce", "PartitionedPS", "PartitionedAR"])
def test_an_update_reads_a_scalar_argument(strategy: str):
    assert_equal_loops(_rates, strategy)


def _scales(front: Any) -> Any:
    net = Net()

    @front.function(whole=["scale"])
    def step(x, y, scale):
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.bias.assign_sub(found[1] * scale)
        net.out.assign_sub(0.1 * found[2])
        return loss

    seen = [step(x, y, np.linspace(0.1, 0.5, 7)) for x, y in batches(*examples())]
    return {"seen": seen, "weights": values(net.variables)}


@pytest.mark.quick("PS")
@pytest.mark.parametrize("strategy", ["PS", "AllReduce", "UnevenPartitionedPS"])
def test_an_update_reads_a_whole_argument(strategy: str):
    assert_equal_loops(_scales, strategy)


@pytest.mark.parametrize("builder", [PS(staleness=2), PS(sync=False)], ids=["staleness", "asynchronous"])
def test_an_update_that_runs_apart_reads_no_argument(builder: PS):
    with pytest.raises(NotYetError, match=r"the update reads the step's input 'input_2', .* staleness or sync=False"):
        run_marked(_rates, builder, 2)


def _accumulates(front: Any) -> Any:
    net = Net()
    sums = [tf.Variable(tf.zeros_like(each)) for each in net.variables]

    @front.function
    def step(x, y, apply):
        loss, found = gradients(net, lambda: net.loss(x, y))
        for total, gradient in zip(sums, found, strict=True):
            total.assign_add(gradient)
        if apply:
            net.descend([total / 2.0 for total in sums])
            for total in sums:
                total.assign(tf.zeros_like(total))
        return loss

    seen = [step(x, y, turn % 2 == 1) for turn, (x, y) in enumerate(batches(*examples()))]
    return {"seen": seen, "weights": values(net.variables, sums)}


@pytest.mark.quick("PartitionedPS")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_are_accumulated_by_hand(strategy: str):
    assert_equal_loops(_accumulates, strategy)
