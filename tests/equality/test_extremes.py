"""Metrics of one's own that keep a maximum or a minimum equal one device's: the replicas' values combine alike."""

import keras
import pytest
from keras import ops

from tests.support.models import DENSE, ReferenceModel, dense_data, dense_model
from tests.support.training import QUIET, assert_equal_training


class Extremes(keras.metrics.Metric):
    """The largest and the smallest prediction so far, and the largest error of each output."""

    def __init__(self, name: str = "extremes"):
        super().__init__(name=name)
        self.largest = self.add_variable((), lambda *_, **__: ops.full((), -9.0), name="largest")
        self.smallest = self.add_variable((), lambda *_, **__: ops.full((), 9.0), name="smallest")
        self.errors = self.add_variable((1,), "zeros", name="errors")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))
        self.smallest.assign(ops.minimum(ops.min(y_pred), self.smallest))
        errors = ops.abs(y_true - y_pred)
        self.errors.assign(ops.maximum(ops.maximum(self.errors, ops.max(errors, axis=0)), 0.1))

    def reset_state(self):
        self.largest.assign(-9.0)
        self.smallest.assign(9.0)
        self.errors.assign(ops.zeros((1,)))

    def result(self):
        return {"largest": self.largest + 0.0, "smallest": self.smallest + 0.0, "errors": ops.sum(self.errors)}


class Each(keras.callbacks.Callback):
    """Keeps what each batch logged, and starts the metrics anew after the second one."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))
        if batch == 1:
            self.model.reset_metrics()


def _program(front, model):
    data, each = dense_data(), Each()
    validation = (data.x[3:16], data.y[3:16])
    history = front.fit(data.x, data.y, epochs=2, validation_data=validation, callbacks=[each], **QUIET).history
    evaluated = front.evaluate(data.x[:10], data.y[:10], batch_size=4, verbose=0, return_dict=True)
    return {"history": history, "batches": each.logs, "evaluated": evaluated}


@pytest.mark.quick("3-PS")
@pytest.mark.parametrize("replicas, strategy", [(2, "AllReduce"), (3, "PS")])
def test_maxima_and_minima(replicas: int, strategy: str):
    case = DENSE.compiled_with(lambda: {"metrics": [Extremes()]})
    assert_equal_training(case, _program, replicas=replicas, strategy=strategy)


class Layered(keras.layers.Layer):
    """Keeps the largest input that was seen, in a variable of its own."""

    def build(self, shape):
        self.peak = self.add_weight(shape=(), initializer="zeros", trainable=False, name="peak")

    def call(self, x):
        self.peak.assign(ops.maximum(self.peak, ops.max(x)))
        return x


def test_a_layers_own_maximum():
    def program(front, model):
        data = dense_data()
        front.fit(data.x, data.y, epochs=1, **QUIET)
        return {"peak": model.get_layer("layered").peak.numpy()}

    def build():
        return keras.Sequential([keras.Input((5,)), Layered(name="layered"), *dense_model().layers], name="peaks")

    assert_equal_training(ReferenceModel("peaks", build, dense_data, lambda: {"loss": "mse"}), program, replicas=3)
