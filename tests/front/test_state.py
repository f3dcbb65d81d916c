"""Whoever looks during training sees the current state, and whatever is changed counts from the next step."""

import keras
import numpy as np
import pytest

from tests.support.compare import assert_same, named
from tests.support.models import BY_NAME, DENSE, dense_data
from tests.support.training import assert_equal_training, fit, train_distributed, train_plain

WAYS = [("callback_model", "AllReduce"), ("closure", "AllReduce"), ("front", "AllReduce"), ("closure", "PS")]


def _reach(way: str, callback, front, model):
    """The model as a callback may get at it."""
    return {"callback_model": lambda: callback.model, "closure": lambda: model, "front": lambda: front}[way]()


class AtBatch(keras.callbacks.Callback):
    """Calls a function with the callback at the end of each batch, and keeps what it returns."""

    def __init__(self, function):
        super().__init__()
        self.function, self.seen = function, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.function(self, batch))


def _train(front, callback):
    return {"history": fit(front, epochs=2, callbacks=[callback]), "seen": callback.seen}


@pytest.mark.quick("callback_model-AllReduce")
@pytest.mark.parametrize("way, builder", WAYS)
def test_weights_are_read_at_every_batch(way: str, builder: str):
    def program(front, model):
        def read(callback, batch):
            return [weight.copy() for weight in _reach(way, callback, front, model).get_weights()]

        result = _train(front, AtBatch(read))
        assert not np.array_equal(result["seen"][0][0], result["seen"][1][0])
        return result

    assert_equal_training(DENSE, program, replicas=2, strategy=builder)


@pytest.mark.quick("closure-PS")
@pytest.mark.parametrize("way, builder", WAYS)
def test_weights_that_are_set_count_from_the_next_step(way: str, builder: str):
    def program(front, model):
        def halve(callback, batch):
            if batch == 1:
                reached = _reach(way, callback, front, model)
                reached.set_weights([weight / 2 for weight in reached.get_weights()])

        return _train(front, AtBatch(halve))["history"]

    assert_equal_training(DENSE, program, replicas=3, strategy=builder)


def _scale_a_variable(callback, batch):
    kernel = callback.model.get_layer("first").kernel
    value = kernel.numpy()
    kernel.assign(value * (0.9 if batch else 1.1))
    return value


def _read_a_tensor_and_call(callback, batch):
    kernel, x = callback.model.get_layer("out").kernel, dense_data(4).x
    return [keras.ops.sum(kernel * 2.0).numpy(), callback.model(x).numpy()]


def _halve_the_rate(callback, batch):
    optimizer = callback.model.optimizer
    optimizer.learning_rate = float(optimizer.learning_rate.numpy()) * 0.5
    return {"rate": optimizer.learning_rate.numpy(), "iterations": optimizer.iterations.numpy()}


def _clear_the_slots(callback, batch):
    slots = [v for v in callback.model.optimizer.variables if v.path.endswith("momentum")]
    assert slots
    seen = named(slots)
    if batch == 2:
        for slot in slots:
            slot.assign(np.zeros(slot.shape))
    return seen


@pytest.mark.quick("_scale_a_variable-settings1")
@pytest.mark.parametrize("at_batch, settings", [
    (_scale_a_variable, {"share_memory": False}), (_scale_a_variable, {"share_memory": True}),
    (_read_a_tensor_and_call, {}), (_halve_the_rate, {"replicas": 3, "strategy": "PS"}),
    (_clear_the_slots, {"optimizer": "momentum"}),
])  # fmt: skip
def test_what_is_read_and_changed_at_a_batch(at_batch, settings):
    assert_equal_training(DENSE, lambda front, model: _train(front, AtBatch(at_batch)), **settings)


def test_moving_averages_are_changed_before_training():
    """The mean of the replicas' moving means is one device's, whatever it started from."""
    reference = BY_NAME["convolution"]

    def program(front, model):
        data, norm = reference.data(), model.get_layer("norm")
        norm.moving_mean.assign([4.0, 3.0, 2.0, 1.0])
        front.fit(data.x, data.y, batch_size=22, epochs=1, shuffle=False, verbose=0)
        return {"moved": norm.moving_mean.numpy()}

    expected = train_plain(reference, program, optimizer="sgd")
    assert_same(expected.result, train_distributed(reference, program, optimizer="sgd", replicas=3).result)
