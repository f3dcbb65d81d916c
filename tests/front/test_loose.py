"""Replicas that do not wait for each other: how far apart they get, and that nothing is lost on the way."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import PS, Parallax, PartitionedPS, PSLoadBalancing
from tests.support.compare import assert_same
from tests.support.layers import Calls
from tests.support.models import BY_NAME, DENSE, dense_data, stacked
from tests.support.training import assert_equal_training, compiled, distributed, seeded, trained

WIDTH = 3


def _linear(optimizer="sgd", first: Sequence[keras.layers.Layer] = ()) -> keras.Model:
    """Its loss is linear in the weights, so that gradients do not depend on how old these are."""
    layers = [keras.Input((WIDTH,), name="x"), *first, keras.layers.Dense(2, use_bias=False, name="out")]

    def linear(y_true, y_pred):
        return keras.ops.mean(y_true * y_pred, axis=-1)

    return stacked(*layers, optimizer=optimizer, loss=linear, name="linear", jit_compile=False)


def _two_alike(optimizer: Callable[[], keras.optimizers.Optimizer]) -> list[keras.Model]:
    return [seeded(lambda: _linear(optimizer())) for _ in range(2)]


def _data(batches: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return rng.uniform(size=(batches * examples, WIDTH)), rng.normal(size=(batches * examples, 2))


def _fit(front, x, y, **options):
    return front.fit(x, y, **{"batch_size": 6, "shuffle": False, "verbose": 0, **options})


class Meets(Calls):
    """Notes which batch each replica begins. The last one ends its batch when the first is `bound` batches ahead.

    Each row says of which batch it is, and of which replica's part.
    """

    def __init__(self, bound: int, batches: int) -> None:
        super().__init__(self.begin)
        self.bound, self.batches = bound, batches
        self.moved, self.begun, self.leads = threading.Condition(), {}, []

    def begin(self, rows):
        batch, replica = (int(number) for number in rows[0, :2])
        with self.moved:
            self.begun[replica] = batch
            self.moved.notify_all()
            if replica == 2 and batch + self.bound < self.batches:
                ahead = self.moved.wait_for(lambda: self.begun.get(0, -1) >= batch + self.bound, 60)
                # Nothing more can come to pass; a replica that may go on would within this time.
                further = self.moved.wait_for(lambda: self.begun.get(0, -1) > batch + self.bound, 0.05)
                self.leads.append((ahead, further))


@pytest.mark.quick("3")
@pytest.mark.parametrize("bound", [1, 3])
def test_the_bound_is_reached_and_never_passed(bound: int):
    x, y = _data(20, 6)
    x[:, 0], x[:, 1] = np.repeat(np.arange(20), 6), np.tile([0, 0, 1, 1, 2, 2], 20)
    meets = Meets(bound, 20)
    model = _linear(first=[meets])
    with distributed(model, replicas=3, strategy=PS(staleness=bound)) as front:
        _fit(front, x, y)
        assert meets.leads == [(True, False)] * (20 - bound)
        assert int(model.optimizer.iterations.numpy()) == 20


@pytest.mark.quick("PartitionedPS-3")
@pytest.mark.parametrize("builder", [
    pytest.param(kind(staleness=bound), id=f"{kind.__name__}-{bound}")
    for kind, bound in ((PS, 2), (PSLoadBalancing, 1), (PartitionedPS, 3))
])  # fmt: skip
def test_an_update_is_made_of_one_batch_whatever_weights_it_was_computed_on(builder):
    x, y = _data(7, 6)
    x, y = x[:-2], y[:-2]
    expected, model = _two_alike(lambda: keras.optimizers.Adam(0.1, name="adam"))
    _fit(expected, x, y, epochs=2)
    with distributed(model, replicas=3, strategy=builder) as front:
        _fit(front, x, y, epochs=2)
    assert_same(trained(expected).state, trained(model).state)


@pytest.mark.quick("PSLoadBalancing")
@pytest.mark.parametrize("builder", [
    pytest.param(kind(sync=False), id=kind.__name__) for kind in (PS, PSLoadBalancing, PartitionedPS)
])  # fmt: skip
def test_asynchronous_updates_are_each_replicas_own_and_none_is_lost(builder):
    """As if every slice had been a batch; the order does not matter where gradients do not depend on weights."""
    x, y = _data(50, 6)
    expected, model = _two_alike(keras.optimizers.SGD)
    _fit(expected, x, y, batch_size=2)
    with distributed(model, replicas=3, strategy=builder) as front:
        _fit(front, x, y)
    assert int(model.optimizer.iterations.numpy()) == 150
    assert_same({"kernel": expected.get_weights()[0]}, {"kernel": model.get_weights()[0]})


@pytest.mark.parametrize("builder", [PS(staleness=2), PS(sync=False)], ids=["ahead", "apart"])
def test_metrics_are_of_all_examples_and_training_converges(builder):
    reference = BY_NAME["embedding"]
    data = reference.data()
    with distributed(compiled(reference), replicas=3, strategy=builder) as front:
        first = _fit(front, data.x, data.y, epochs=1).history["loss"][0]
        history = _fit(front, data.x, data.y, epochs=8, validation_data=(data.x, data.y)).history
        again = front.evaluate(data.x, data.y, verbose=0, return_dict=True)
    assert history["loss"][-1] < 0.5 * first
    assert history["val_loss"][-1] == pytest.approx(again["loss"])


def test_a_metric_counts_every_example_once():
    x, y = _data(9, 6)
    model = _linear(keras.optimizers.SGD(0.0))
    expected = model.evaluate(x, y, verbose=0)
    with distributed(model, replicas=3, strategy=PS(staleness=2)) as front:
        assert _fit(front, x, y).history["loss"] == pytest.approx([expected], rel=1e-12)


@pytest.mark.parametrize("builder", [PS(staleness=1), PS(sync=False)], ids=str)
def test_a_failing_replica_ends_the_fit_and_the_next_one_works(builder):
    model = stacked(keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Flatten())
    x, y = np.tile([[1, 2]], (60, 1)), np.zeros((60, 4))
    wrong = np.array(x)
    wrong[29] = 7  # in the fifth batch, for the last replica
    with distributed(model, replicas=3, strategy=builder) as front:
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            _fit(front, wrong, y)
        before = int(model.optimizer.iterations.numpy())
        # The last replica began its fifth batch; with the bound of 1, three updates were done by then.
        assert 3 <= before <= 4 if builder.sync else 4 <= before <= 29
        _fit(front, x, y)
        assert int(model.optimizer.iterations.numpy()) == before + (10 if builder.sync else 30)
        assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_an_interrupt_ends_the_fit_and_leaves_the_model_usable():
    """Ctrl-C comes in the middle of a step, where a row begins with a large number."""
    interrupts = Calls(lambda rows: rows[0, 0] > 1.0 and os.kill(os.getpid(), signal.SIGINT))
    x, y = _data(400, 6)
    x[10 * 6] += 2.0
    model = _linear(first=[interrupts])
    with distributed(model, replicas=3, strategy=PS(staleness=2)) as front:
        _fit(front, x[:12], y[:12])
        with pytest.raises(KeyboardInterrupt):
            _fit(front, x, y)
        before = int(model.optimizer.iterations.numpy())
        assert 2 < before < 402
        _fit(front, x[:12], y[:12])
        assert int(model.optimizer.iterations.numpy()) == before + 2


def test_one_replica_has_nobody_to_wait_for():
    assert_equal_training(DENSE, strategy=PS(staleness=2), replicas=1)


def test_what_keeps_replicas_in_step_is_in_the_plan_and_exact():
    reference = BY_NAME["embedding"]
    assert_equal_training(reference, strategy=Parallax(staleness=2))
    with distributed(compiled(reference), strategy=Parallax(staleness=2)) as front:
        assert "staleness and sync=False have no effect: hidden/kernel keeps the replicas in step" in front.plan()


def test_a_step_that_adds_up_over_replicas_keeps_them_in_step():
    """Each replica's part of a mean over weights is not known to one replica alone."""
    def weighted() -> dict:
        return {"loss": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")}

    reference, data = DENSE.compiled_with(weighted), dense_data()
    assert_equal_training(
        reference, strategy=PS(staleness=2), data=replace(data, sample_weight=np.linspace(0.1, 2.0, len(data.x)))
    )
    with distributed(compiled(reference), strategy=PS(staleness=2)) as front:
        note = "exact after all: the step adds something up over all replicas"
        plan = front.plan(data.x, data.y, np.ones(len(data.x)))
        assert note in plan and "not exact" not in plan
        plan = front.plan(data.x, data.y)
        assert note not in plan and "not exact" in plan


class Capped(keras.constraints.Constraint):
    """Refuses weights above a limit, after the update has begun."""

    def __call__(self, weight):
        tf.debugging.assert_less(tf.reduce_max(weight), tf.constant(5.0, weight.dtype))
        return weight + 0.0


@pytest.mark.parametrize("builder", [PS(staleness=2), PS(sync=False)], ids=str)
def test_an_update_that_fails_ends_the_fit_and_the_next_one_works(builder):
    layers = [keras.Input((WIDTH,)), keras.layers.Dense(1, use_bias=False, kernel_constraint=Capped())]
    model = stacked(*layers, optimizer=keras.optimizers.SGD(1.0), jit_compile=False)
    x, y = np.ones((60, WIDTH)), np.zeros((60, 1))
    y[30:] = 1e6
    with distributed(model, replicas=3, strategy=builder) as front:
        with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
            _fit(front, x, y)
        model.set_weights([np.zeros((WIDTH, 1))])
        before = int(model.optimizer.iterations.numpy())
        _fit(front, 0.01 * x[:12], y[:12])
        assert int(model.optimizer.iterations.numpy()) == before + (2 if builder.sync else 6)


def test_all_batches_before_a_failing_one_are_trained():
    """Those too that another replica still computes when it fails."""
    slow = Calls(lambda rows: time.sleep(0.03 if rows[0, 0] > 1.0 else 0.0))
    model = stacked(keras.Input((1,)), slow, keras.layers.Embedding(5, 2), keras.layers.Flatten())
    x, y = np.ones((19, 1)), np.ones((19, 2))
    x[6] = 2  # the second batch takes the first replica long
    x[17] = 7  # in the third batch; the fourth has a single row, for which another graph is built
    with distributed(model, replicas=3, strategy=PS(staleness=2)) as front:
        before = model.get_weights()[0].copy()
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            _fit(front, x, y)
        assert int(model.optimizer.iterations.numpy()) == 2
        assert (model.get_weights()[0][1] != before[1]).all()


def test_a_single_batch_returns_its_own_loss():
    model = _linear(keras.optimizers.SGD(0.0))
    x, y = _data(1, 6)
    with distributed(model, replicas=1) as front:
        expected = [front.train_on_batch(scale * x[:2], y[:2]) for scale in (1.0, 4.0)]
    with distributed(model, replicas=3, strategy=PS(staleness=2)) as front:
        found = [front.train_on_batch(scale * x, y) for scale in (1.0, 4.0)]
    assert found == pytest.approx(expected, rel=1e-12), "of the first replica's slice"


def test_batches_of_two_kinds_in_turns_wait_for_each_other():
    x, y = _data(8, 6)
    expected, model = _two_alike(lambda: keras.optimizers.Adam(0.1, name="adam"))
    with distributed(model, replicas=3, strategy=PS(staleness=2)) as front:
        for number in range(8):
            rows = slice(6 * number, 6 * number + 6)
            weights = np.ones(6) if number % 2 else None
            expected.train_on_batch(x[rows], y[rows], sample_weight=weights)
            front.train_on_batch(x[rows], y[rows], sample_weight=weights)
    assert_same({"kernel": expected.get_weights()[0]}, {"kernel": model.get_weights()[0]})


class Waits(keras.constraints.Constraint):
    """Holds one of the updates up until it is told to go on."""

    def __init__(self, number: int) -> None:
        self.go_on, self.count, self.number, self.waited = threading.Event(), 0, number, []

    def __call__(self, weight):
        def wait(value: np.ndarray) -> np.ndarray:
            self.count += 1
            if self.count == self.number:
                self.waited.append(self.go_on.wait(20))
            return value

        return tf.reshape(tf.numpy_function(wait, [weight], weight.dtype), weight.shape)


def test_batches_are_handed_out_while_an_update_runs():
    """The thread that trains hears Ctrl-C meanwhile, and does not wait for the update before it must."""
    waits = Waits(3)
    layers = [keras.Input((WIDTH,)), keras.layers.Dense(2, use_bias=False, kernel_constraint=waits)]
    model = stacked(*layers, jit_compile=False)
    waits.count = 0
    x, y = _data(6, 4)
    release = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: waits.go_on.set() if batch == 4 else None
    )
    with distributed(model, replicas=2, strategy=PS(staleness=2)) as front:
        _fit(front, x, y, batch_size=4, callbacks=[release])
    assert waits.waited == [True]
    assert int(model.optimizer.iterations.numpy()) == 6


def test_a_failure_that_another_thread_meets_when_it_looks_is_the_trainings():
    model = stacked(keras.Input((2,), dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.Flatten())
    x, y = np.tile([[1, 2]], (24, 1)), np.zeros((24, 4))
    x[11] = 7  # in the third batch, for the last replica
    seen = []

    def look(batch, logs):
        if batch == 2:
            ThreadPoolExecutor().submit(lambda: seen.append(model.optimizer.iterations.numpy())).result(20)

    meanwhile = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    with distributed(model, strategy=PS(staleness=2)) as front:
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            _fit(front, x, y, batch_size=4, callbacks=[meanwhile])
        assert int(model.optimizer.iterations.numpy()) == 2
        assert len(seen) == 1
        x[11] = 1
        _fit(front, x, y, batch_size=4)
        assert int(model.optimizer.iterations.numpy()) == 8
