"""Metrics, logs, History, means that custom steps keep, and extremes, are the global batch's, whatever they compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.support.models import DENSE, EXAMPLES, Data, ReferenceModel, dense_data, dense_model
from tests.support.steps import OwnLoss
from tests.support.training import QUIET, assert_equal_training


def _classifier() -> keras.Model:
    dense = keras.layers.Dense
    return keras.Sequential(
        [keras.Input((5,), name="x"), dense(6, activation="tanh", name="hidden"),
         dense(1, activation="sigmoid", name="out")], name="classifier",
    )  # fmt: skip


def _classes() -> Data:
    data = dense_data()
    return Data(data.x, (data.y > 0).astype("float64"), np.linspace(0.2, 2.0, EXAMPLES))


def _settings() -> dict:
    metrics = keras.metrics
    return {
        "loss": "binary_crossentropy",
        "metrics": [metrics.AUC(num_thresholds=50, name="auc"), metrics.Precision(name="precision"),
                    metrics.R2Score(name="r2"), metrics.RootMeanSquaredError(name="rmse")],
        "weighted_metrics": [metrics.AUC(curve="PR", num_thresholds=50, name="weighted_auc"), "accuracy"],
    }  # fmt: skip


CLASSIFIER = ReferenceModel("classifier", _classifier, _classes, _settings)


def _fit(front, model):
    data, seen = CLASSIFIER.data(), []
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    validation = (data.x[3:17], data.y[3:17])
    history = front.fit(
        data.x, data.y, sample_weight=data.sample_weight, validation_data=validation, epochs=3, callbacks=[keep],
        **QUIET,
    )  # fmt: skip
    assert len(seen) == 12
    afterwards = model.get_metrics_result()
    # With a learning rate of zero every epoch is the same epoch, to the last bit.
    model.optimizer.learning_rate = 0.0
    same = front.fit(data.x, data.y, sample_weight=data.sample_weight, epochs=4, **QUIET).history
    for name, values in same.items():
        assert len(set(values)) == 1, name
    return {"history": history.history, "batches": seen, "afterwards": afterwards, "same": same}


def test_history_and_the_logs_of_every_batch():
    expected = assert_equal_training(CLASSIFIER, _fit, replicas=3, strategy="PS")
    assert 0 < expected.result["history/auc/0"] < 1 and "afterwards/auc" in expected.result


class Tracked(OwnLoss, keras.Model):
    """The step of Keras's own guides: a loss by hand, a mean of it, and the same weighted by the number of examples."""

    def __init__(self):
        super().__init__(name="tracked")
        self.out = keras.layers.Dense(3, name="out")
        self.plainly = keras.metrics.Mean(name="plainly")
        self.weighted = keras.metrics.Mean(name="weighted")
        self.summed = keras.metrics.Sum(name="summed")
        self.batches = keras.metrics.Sum(name="batches")
        self.seen = keras.metrics.Sum(name="seen")

    @property
    def metrics(self):
        return [self.plainly, self.weighted, self.summed, self.batches, self.seen]

    def call(self, x):
        return self.out(x)

    def returned(self, x, loss):
        self.plainly.update_state(loss)
        self.weighted.update_state(loss, sample_weight=tf.shape(x)[0])
        self.summed.update_state(loss)
        self.batches.update_state(1.0)
        self.seen.update_state(tf.shape(x)[0])
        return {metric.name: metric.result() for metric in self.metrics}


def _data() -> Data:
    x = np.random.default_rng(0).normal(size=(22, 3))
    return Data(x, x**2)


def test_means_of_losses():
    found = assert_equal_training(ReferenceModel("tracked", Tracked, _data, dict), optimizer="sgd", replicas=3)
    assert set(found.result) == {"plainly", "weighted", "summed", "batches", "seen"}
    assert (found.result["batches"] == 4.0).all() and (found.result["seen"] == 22.0).all()


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
