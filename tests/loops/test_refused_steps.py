"""Training steps of a loop that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.loop_steps import gradients
from tests.support.loops import Net, autodist, examples, values


def test_gradients_in_a_nested_function_are_refused():
    net = Net()
    with autodist() as front:

        @tf.function
        def inner(x, y):
            return gradients(net, lambda: net.loss(x, y))

        @front.function
        def step(x, y):
            loss, found = inner(x, y)
            net.descend(found)
            return loss

        before = values(net.variables)
        with pytest.raises(CaptureError, match=r"take the @tf.function of the nested function away"):
            step(*examples(4))
        assert all(np.array_equal(old, new) for old, new in zip(before, values(net.variables), strict=True))


def test_a_jacobian_of_variables_is_refused():
    net = Net()
    with autodist() as front:

        @front.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = net.loss(x, y)
            net.descend(tape.jacobian(loss, net.variables))

        with pytest.raises(CaptureError, match=r"tape\.jacobian .* Use tape\.gradient for a loss"):
            step(*examples(4))


def test_gradients_in_a_loop_are_refused():
    net = Net()
    with autodist() as front:

        @front.function
        def step(x, y):
            for _ in tf.range(2):
                net.descend(gradients(net, lambda: net.loss(x, y))[1])

        with pytest.raises(CaptureError, match="write the loop around the marked function"):
            step(*examples(4))


def test_an_update_that_a_loss_decides_is_refused():
    net = Net()
    with autodist() as front:

        @front.function
        def step(x, y):
            loss, found = gradients(net, lambda: net.loss(x, y))
            if loss < 100.0:
                net.descend(found)
            return loss

        with pytest.raises(CaptureError, match="let the update depend on gradients and variables"):
            step(*examples(4))
