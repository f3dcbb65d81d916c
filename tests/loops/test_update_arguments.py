"""What an update of a loop may read besides gradients, and updates that several functions share."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError, NotYetError
from autodist_core.strategy import PS
from tests.support.loop_steps import gradients
from tests.support.loops import Net, assert_equal_loops, autodist, batches, examples, run_marked, values

STRATEGIES = ["PS", "AllReduce", "PartitionedPS"]


def _rates(front: Any) -> Any:
    net = Net()

    @front.function
    def step(x, y, rate):
        loss = net.train(lambda: net.loss(x, y), rate)
        return loss, rate * 2.0

    seen = [step(x, y, tf.constant(0.3 / (1 + turn), tf.float64)) for turn, (x, y) in enumerate(batches(*examples()))]
    return {"seen": seen, "weights": values(net.variables)}


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


class _Accumulation:
    """Gradients in variables: functions that only add, only apply, and only zero."""

    def __init__(self) -> None:
        self.net = Net()
        self.sums = [tf.Variable(tf.zeros_like(each), name="sum") for each in self.net.variables]
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.net.variables)
        self.rate = tf.Variable(0.5, dtype=tf.float64)

    def add(self, x, y):
        loss, found = gradients(self.net, lambda: self.net.loss(x, y))
        for total, gradient in zip(self.sums, found, strict=True):
            total.assign(total + gradient)
        return loss

    def descend(self):
        self.net.descend([total / 2.0 for total in self.sums], self.rate)

    def descend_by_norm(self):
        clipped, _ = tf.clip_by_global_norm([total / 2.0 for total in self.sums], 0.1)
        self.net.descend(clipped, self.rate)
        return self.net.bias

    def apply(self):
        self.optimizer.apply_gradients(zip([total / 2.0 for total in self.sums], self.net.variables, strict=True))

    def zero(self):
        for total in self.sums:
            total.assign(tf.zeros_like(total))

    def apply_and_zero(self):
        self.apply()
        self.zero()

    def train(self, front, *others, every=2):
        """Add the gradients of each batch, and call the others after so many batches; gives all results and values."""
        add, seen = front.function(self.add), []
        for turn, batch in enumerate(batches(*examples()), start=1):
            seen += [add(*batch), *(other() for other in others if turn % every == 0)]
        return {"seen": seen, "state": values(self.net.variables, self.sums, self.optimizer.variables)}


def _only_zeroes(front: Any) -> Any:
    both = _Accumulation()
    return both.train(front, both.descend, front.function(both.zero))


def _only_applies(front: Any) -> Any:
    both = _Accumulation()
    apply = front.function(both.descend)
    apply()  # before anything is trained
    return both.train(front, apply, front.function(both.zero))


def _applies_by_norm(front: Any) -> Any:
    both = _Accumulation()
    return both.train(front, front.function(both.descend_by_norm), front.function(both.zero), every=1)


def _applies_by_an_optimizer(front: Any) -> Any:
    both = _Accumulation()
    return both.train(front, front.function(both.apply_and_zero))


@pytest.mark.quick("_only_zeroes-AllReduce", "_applies_by_an_optimizer-PartitionedPS")
@pytest.mark.parametrize(("loop", "strategy"), [
    pytest.param(loop, strategy, id=f"{loop.__name__}-{strategy}")
    for row, loop in enumerate([_only_zeroes, _only_applies, _applies_by_norm, _applies_by_an_optimizer])
    for turn, strategy in enumerate([*STRATEGIES, "PSLoadBalancing", "UnevenPartitionedPS", "PartitionedAR"])
    if (row + turn) % 2
])
def test_several_functions_accumulate_apply_and_zero(loop: Any, strategy: str):
    assert_equal_loops(loop, strategy)


def test_replicas_in_shared_memory_accumulate_apply_and_zero():
    assert_equal_loops(_applies_by_an_optimizer, "PS", share_memory=True)


def test_replicas_that_are_at_different_steps_do_not_apply_apart():
    with pytest.raises(NotYetError, match=r"With staleness or sync=False .* Assign it in Python between the calls"):
        run_marked(_applies_by_an_optimizer, PS(staleness=2), 2)


def _copies_weights_within_a_step(front: Any) -> Any:
    """Train a network, and let another one that is trained, too, begin anew from it."""
    one, other = Net(), Net()

    @front.function
    def train(x, y, rate):
        return other.train(lambda: other.loss(x, y), rate)

    @front.function
    def train_and_copy(x, y, rate):
        for source, target in zip(one.variables, other.variables, strict=True):
            target.assign(0.5 * source + rate * target)
        return one.train(lambda: one.loss(x, y))

    rate, seen = tf.constant(0.3, tf.float64), []
    for batch in batches(*examples()):
        seen += [train(*batch, rate), train_and_copy(*batch, rate)]
    return {"seen": seen, "weights": values(one.variables, other.variables)}


def test_a_result_of_the_batch_and_of_what_a_function_assigns_is_refused():
    net = Net()
    with autodist() as front:

        @front.function
        def train(x, y):
            net.descend(gradients(net, lambda: net.loss(x, y))[1])

        @front.function
        def shrink(x):
            net.kernel.assign(0.5 * net.kernel)
            return net(x)

        train(*examples(5))
        before = values(net.variables)
        with pytest.raises(CaptureError, match="Assign them in a marked function of its own"):
            shrink(examples(5)[0])
        assert all(np.array_equal(old, new) for old, new in zip(before, values(net.variables), strict=True))


def _adapts(front: Any) -> Any:
    """Meta-learning: a loss after a step of an inner loop, and a penalty on the norm of the gradient."""
    net = Net()

    def whole(gradient):
        return tf.distribute.get_replica_context().all_reduce("MEAN", gradient)

    @front.function
    def step(x, y, later_x, later_y):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = net.loss(x, y)
            kernel, bias, out = map(whole, inner.gradient(loss, net.variables))
            hidden = tf.tanh(later_x @ (net.kernel - 0.3 * kernel) + net.bias - 0.3 * bias)
            logits = hidden @ (net.out - 0.3 * out)
            later = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=later_y, logits=logits)
            after = tf.reduce_mean(later) + 0.1 * tf.norm(kernel)
        net.descend(outer.gradient(after, net.variables))
        return loss, after

    pairs = zip(batches(*examples()), batches(*examples(seed=9)), strict=True)
    return {"seen": [step(*first, *later) for first, later in pairs], "weights": values(net.variables)}


@pytest.mark.quick(
    "_rates-PartitionedPS", "_scales-PS", "_accumulates-PartitionedPS", "_copies_weights_within_a_step-PartitionedPS",
    "_adapts-AllReduce",
)  # fmt: skip
@pytest.mark.parametrize(("loop", "strategy"), [
    *((loop, each) for loop in (_rates, _accumulates, _copies_weights_within_a_step) for each in STRATEGIES),
    (_rates, "PartitionedAR"), (_scales, "PS"), (_adapts, "AllReduce"),
])  # fmt: skip
def test_an_update_that_reads_or_writes_more_equals_one_devices(loop: Any, strategy: str):
    assert_equal_loops(loop, strategy)
