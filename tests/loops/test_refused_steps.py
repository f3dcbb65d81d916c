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


@pytest.mark.parametrize("count", [13, 12])
def test_labels_that_are_no_argument_are_named(count: int):
    x, y = examples(count)
    net, labels = Net(), tf.constant(y)
    with autodist() as front:

        @front.function
        def step(inputs):
            loss, found = gradients(net, lambda: net.loss(inputs, labels))
            net.descend(found)
            return loss

        before = values(net.variables)
        with pytest.raises(CaptureError, match=rf"step uses a tensor of shape \({count},\) that is no argument"):
            step(x)
        assert all(np.array_equal(old, new) for old, new in zip(before, values(net.variables), strict=True))


def test_a_shape_without_the_number_of_examples_is_no_result():
    with autodist() as front:
        with pytest.raises(CaptureError, match=r"returns the shape \(None, 3\).* Return tf\.shape\(x\)\[0\]"):
            front.function(lambda x: x.shape)(np.ones((7, 3)))
        count, rest = front.function(lambda x: (tf.shape(x)[0], x.shape[1:]))(np.ones((7, 3)))
        assert int(count) == 7 and list(rest) == [3]


def test_settings_of_tf_function_are_refused_with_what_to_do():
    with autodist() as front, pytest.raises(TypeError, match=r"takes `whole` .* Received: jit_compile\. Leave it out"):
        front.function(jit_compile=True)


@pytest.mark.parametrize(
    ("other", "received"),
    [
        (np.ones((7, 5), "float32"), r"float32 of shape \(7, 5\)"), (np.ones((7, 4)), r"float64 of shape \(7, 4\)"),
        (np.ones(7), r"float64 of shape \(7,\)"),
    ],
    ids=["type", "width", "rank"],
)
def test_a_batch_of_another_kind_that_does_not_fit_is_named(other: np.ndarray, received: str):
    net = Net()
    with autodist() as front:
        step = front.function(lambda inputs: net(inputs))
        step(np.ones((6, 5)))
        before = r"float64 of shape \(6, 5\)"
        with pytest.raises(CaptureError, match=rf"\(inputs=\.\.\.\) received {received}, and {before} before"):
            step(other)
        assert step(np.ones((7, 5))).shape == (7, 3)
