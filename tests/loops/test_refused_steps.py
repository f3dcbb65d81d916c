"""Training steps of a loop that are refused."""

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.loop_steps import gradients
from tests.support.loops import Net, autodist, examples, values


def _in_a_nested_function(net, x, y):
    net.descend(tf.function(lambda: gradients(net, lambda: net.loss(x, y))[1])())


def _by_a_jacobian(net, x, y):
    with tf.GradientTape() as tape:
        loss = net.loss(x, y)
    net.descend(tape.jacobian(loss, net.variables))


def _in_a_loop(net, x, y):
    for _ in tf.range(2):
        net.descend(gradients(net, lambda: net.loss(x, y))[1])


def _as_a_loss_decides(net, x, y):
    loss, found = gradients(net, lambda: net.loss(x, y))
    if loss < 100.0:
        net.descend(found)


REFUSED = [
    (_in_a_nested_function, r"take the @tf.function of the nested function away"),
    (_by_a_jacobian, r"tape\.jacobian .* Use tape\.gradient for a loss"),
    (_in_a_loop, "write the loop around the marked function"),
    (_as_a_loss_decides, "let the update depend on gradients and variables"),
]


@pytest.mark.parametrize(("step", "message"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_step_whose_gradients_or_update_cannot_be_found_is_refused(step, message: str):
    net = Net()
    with autodist() as front:
        before = values(net.variables)
        with pytest.raises(CaptureError, match=message):
            front.function(lambda x, y: step(net, x, y))(*examples(4))
        assert all(np.array_equal(old, new) for old, new in zip(before, values(net.variables), strict=True))


@pytest.mark.parametrize("count", [13, 12])
def test_labels_that_are_no_argument_do_not_fit(count: int):
    x, y = examples(count)
    net, labels = Net(), tf.constant(y)
    with autodist() as front:

        @front.function
        def step(inputs):
            return net.train(lambda: net.loss(inputs, labels))

        before = values(net.variables)
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"^in step: .* labels shape \[{count}\]\n"):
            step(x)
        assert all(np.array_equal(old, new) for old, new in zip(before, values(net.variables), strict=True))


def test_a_shape_without_the_number_of_examples_is_no_result():
    with autodist() as front:
        with pytest.raises(CaptureError, match=r"returns a TensorShape\. .* Return tf\.shape\(x\)\[0\]"):
            front.function(lambda x: x.shape)(np.ones((7, 3)))
        count, rest = front.function(lambda x: (tf.shape(x)[0], x.shape[1:]))(np.ones((7, 3)))
        assert int(count) == 7 and list(rest) == [3]


def test_settings_of_tf_function_are_refused_with_what_to_do():
    with autodist() as front, pytest.raises(TypeError, match=r"takes `whole` .* Received: jit_compile\. Leave it out"):
        front.function(jit_compile=True)


@pytest.mark.parametrize(
    ("other", "said"),
    [(np.ones((7, 5), "float32"), "float64 .* float32"), (np.ones((7, 4)), r"\[\?,4\]"), (np.ones(7), r"\[\?\]|rank")],
    ids=["type", "width", "rank"],
)
def test_a_batch_of_another_kind_that_does_not_fit_is_refused(other: np.ndarray, said: str):
    net = Net()
    with autodist() as front:
        step = front.function(lambda inputs: net(inputs))
        step(np.ones((6, 5)))
        with pytest.raises((TypeError, ValueError), match=said):
            step(other)
        assert step(np.ones((7, 5))).shape == (7, 3)
