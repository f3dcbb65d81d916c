"""Metrics, logs, History, and means that custom steps keep, are the global batch's, whatever they compute."""

import keras
import numpy as np
import tensorflow as tf

from tests.support.models import EXAMPLES, Data, ReferenceModel, dense_data
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
