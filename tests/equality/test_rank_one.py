"""Predictions without a last axis: Keras reduces their losses and metrics over the batch before it weighs them."""

from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest

from tests.support.compare import TOLERANCE, assert_equally_trained
from tests.support.models import BATCH, DENSE, Data, ReferenceModel, dense_data
from tests.support.steps import OwnStep
from tests.support.training import assert_equal_training, fit, train_distributed, train_plain


def _model() -> keras.Model:
    inputs = keras.Input((dense_data().x.shape[1],))
    outputs = keras.layers.Reshape(())(keras.layers.Dense(1, name="out")(inputs))
    return keras.Model(inputs, outputs, name="flat")


def _small_steps(build: Callable[[], keras.Model], settings: Callable[[], dict]) -> ReferenceModel:
    def compiled_with() -> dict:
        return {"optimizer": keras.optimizers.SGD(0.01, name="sgd"), "loss": "mse", **settings()}

    return ReferenceModel("small_steps", build, dense_data, compiled_with)


@pytest.mark.quick("sum_over_batch_size-spread", "mean_with_sample_weight-spread")
@pytest.mark.parametrize("weights", ["spread", "zeros_in_front"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_sample_weights(reduction: str, weights: str):
    given = dense_data()
    sample_weight = np.linspace(0.5, 2.0, len(given.x))
    if weights == "zeros_in_front":
        sample_weight[:4] = 0.0
    data = Data(given.x, given.y[:, 0], sample_weight)
    reference = _small_steps(_model, lambda: {"loss": keras.losses.MeanSquaredError(reduction=reduction)})
    expected = train_plain(reference, data=data)
    for replicas, tolerance in ((1, 0.0), (3, TOLERANCE)):
        assert_equally_trained(expected, train_distributed(reference, replicas=replicas, data=data), tolerance)


def _gap(y_true, y_pred):
    """A metric function that reduces its batch by itself, of whatever shape it is."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


METRICS = {
    "flat": (_model, lambda: ["mae", "mse"]),
    "by_hand": (DENSE.build, lambda: [_gap]),
}
"""Functions that make one number of a batch: because predictions have no last axis, or by themselves."""


@pytest.mark.quick("flat-plain", "by_hand-sample_weight")
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "sample_weight"])
@pytest.mark.parametrize("case", METRICS)
def test_metrics_that_are_one_number_for_a_batch(case: str, weighted: bool):
    build, metrics = METRICS[case]
    given = dense_data()
    data = Data(given.x, given.y if case == "by_hand" else given.y[:, 0], np.linspace(0.2, 2.0, len(given.x)))
    weights = data.sample_weight if weighted else None
    reference = _small_steps(build, lambda: {"metrics": metrics()})

    def program(front, model):
        history = fit(front, replace(data, sample_weight=weights), validation_data=(data.x[:9], data.y[:9]))
        evaluated = front.evaluate(data.x, data.y, sample_weight=weights, batch_size=BATCH, verbose=0, return_dict=True)
        return {"history": history, "evaluated": evaluated}

    expected = train_plain(reference, program)
    assert len(expected.result) == 3 * (1 + len(metrics()))
    for replicas, tolerance in ((1, 0.0), (3, TOLERANCE)):
        assert_equally_trained(expected, train_distributed(reference, program, replicas=replicas), tolerance)


@pytest.mark.parametrize("train", [train_plain, train_distributed])
def test_weighted_metrics_of_one_number_fail_as_in_keras(train: Callable):
    """Weights of examples have nothing to weigh in a number for the whole batch."""
    given = dense_data()
    data = Data(given.x, given.y[:, 0], np.linspace(0.2, 2.0, len(given.x)))
    reference = _small_steps(_model, lambda: {"weighted_metrics": ["mae"]})
    with pytest.raises(ValueError, match="at most rank 0 but is rank 1"):
        train(reference, lambda front, model: fit(front, data))


class OwnLoop(OwnStep):
    """Updates its compiled metrics itself, as Keras's guides show."""

    def __init__(self):
        super().__init__(name="own_loop")
        self.gap = keras.metrics.MeanMetricWrapper(_gap, name="gap")

    def train_step(self, data):
        logs = super().train_step(data)
        self.gap.update_state(data[1], self(data[0]))
        return {**logs, "gap": self.gap.result()}

    @property
    def metrics(self):
        return [*super().metrics, self.gap]


def test_a_metric_function_in_a_custom_step():
    reference = ReferenceModel("own_loop", OwnLoop, dense_data, dict)
    assert "gap" in assert_equal_training(reference, optimizer="sgd", replicas=3).result
