"""Metrics, logs and History are the global batch's, whatever the metric computes."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from tests.support.models import BY_NAME, DENSE, EXAMPLES, Data, ReferenceModel, dense_data
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


class Spread(keras.metrics.Metric):
    """Largest minus smallest prediction of the last epoch's weights: state of its own, no mean, no stock class."""

    def __init__(self, name: str = "spread"):
        super().__init__(name=name)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.squares = self.add_weight(shape=(), initializer="zeros", name="squares")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y_pred))
        self.squares.assign_add(keras.ops.sum(keras.ops.square(y_pred)))

    def result(self):
        return keras.ops.sqrt(self.squares) - self.total / (1.0 + self.squares)


class BatchLogs(keras.callbacks.Callback):
    """Keeps what each batch logged."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))


def _fit(front, model):
    data, logs = CLASSIFIER.data(), BatchLogs()
    validation = (data.x[3:17], data.y[3:17])
    history = front.fit(
        data.x, data.y, sample_weight=data.sample_weight, validation_data=validation, epochs=3, callbacks=[logs],
        **QUIET,
    )  # fmt: skip
    assert len(logs.logs) == 12
    return {"history": history.history, "batches": logs.logs, "afterwards": model.get_metrics_result()}


def test_history_and_the_logs_of_every_batch():
    expected = assert_equal_training(CLASSIFIER, _fit, replicas=3, strategy="PS")
    assert 0 < expected.result["history/auc/0"] < 1 and "afterwards/auc" in expected.result


@pytest.mark.long
def test_metrics_of_several_outputs():
    reference = BY_NAME["heads"]

    def program(front, model):
        data = reference.data()
        return front.fit(data.x, data.y, epochs=2, validation_split=0.3, **QUIET).history

    assert "val_label_accuracy/1" in assert_equal_training(reference, program, replicas=3).result


def test_a_metric_of_the_users_own():
    assert_equal_training(DENSE.compiled_with(lambda: {"metrics": [Spread()]}), replicas=3)


def test_metrics_start_anew_each_epoch():
    """With a learning rate of zero every epoch is the same epoch, to the last bit."""

    def program(front, model):
        model.optimizer.learning_rate = 0.0
        data = CLASSIFIER.data()
        history = front.fit(data.x, data.y, epochs=12, **QUIET).history
        for name, values in history.items():
            assert len(set(values)) == 1, name
        return history

    assert_equal_training(CLASSIFIER, program, optimizer="sgd", replicas=3)


class Largest(keras.metrics.Metric):
    """Keeps the largest prediction, and begins with a number that a reset does not set."""

    def __init__(self):
        super().__init__(name="largest")
        self.kept = self.add_variable((), keras.initializers.Constant(3.0), name="kept")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept.assign(keras.ops.maximum(self.kept, keras.ops.max(y_pred)))

    def result(self):
        return self.kept


def _plans_first(front, model):
    """A distributed model plans, verifies and predicts before its first `fit`."""
    data = dense_data()
    if front is not model:
        assert "largest" not in front.plan(data.x, data.y)
        front.verify(data.x, data.y, steps=1)
        front.plan(data.x, data.y)
    front.predict(data.x, verbose=0)
    histories = [front.fit(data.x, data.y, epochs=2, **QUIET).history for _ in range(2)]
    front.train_on_batch(data.x - 9, data.y)
    return histories, front.evaluate(data.x, data.y, verbose=0, return_dict=True)


def _planned_and_trained_on_one_device(front, model):
    data = dense_data()
    if front is not model:
        front.plan(data.x, data.y)
    return model.fit(data.x, data.y, epochs=2, **QUIET).history, model.test_on_batch(data.x, data.y, return_dict=True)


@pytest.mark.quick("_plans_first")
@pytest.mark.parametrize("program", [_plans_first, _planned_and_trained_on_one_device])
def test_metrics_begin_in_the_first_fit_as_without_a_plan(program):
    def settings():
        return {"loss": "mse", "metrics": [Largest(), "mae"]}

    model = ReferenceModel("largest", DENSE.build, dense_data, settings)
    expected = assert_equal_training(model, program, optimizer="sgd", built=False)
    (first,) = [value for name, value in expected.result.items() if re.fullmatch(r"(0/)*largest/0", name)]
    assert first == 3
