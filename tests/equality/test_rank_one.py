"""Predictions without a last axis: Keras reduces their losses and metrics over the batch before it weighs them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import keras
import numpy as np
import pytest

from tests.support.compare import assert_equally_trained
from tests.support.distributed import distributed, train_distributed
from tests.support.models import BATCH, DENSE, Data, ReferenceModel, dense_data
from tests.support.steps import OwnStep
from tests.support.training import fit, seeded, train_plain, trained


def _model() -> keras.Model:
    inputs = keras.Input((dense_data().x.shape[1],))
    outputs = keras.layers.Reshape(())(keras.layers.Dense(1, name="out")(inputs))
    return keras.Model(inputs, outputs, name="flat")


@pytest.mark.every(2)
@pytest.mark.parametrize("weights", ["spread", "zeros_in_front"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_sample_weights(reduction: str, weights: str):
    given = dense_data()
    sample_weight = np.linspace(0.5, 2.0, len(given.x))
    if weights == "zeros_in_front":
        sample_weight[:4] = 0.0
    data, results = Data(given.x, given.y[:, 0], sample_weight), []
    for replicas in (None, 1, 2, 3):
        model = seeded(_model)
        optimizer = keras.optimizers.SGD(0.01, name="sgd")
        model.compile(optimizer, keras.losses.MeanSquaredError(reduction=reduction), jit_compile=False)
        if replicas is None:
            history = fit(model, data)
        else:
            with distributed(model, replicas=replicas) as front:
                history = fit(front, data)
        results.append(trained(model, history, [optimizer]))
    assert_equally_trained(results[0], results[1], tolerance=0.0)
    assert_equally_trained(results[0], results[2])
    assert_equally_trained(results[0], results[3])


def _gap(y_true, y_pred):
    """A metric function that reduces its batch by itself, of whatever shape it is."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


METRICS = {
    "flat": (_model, lambda: ["mae", "mse"]),
    "by_hand": (DENSE.build, lambda: [_gap]),
}
"""Functions that make one number of a batch: because predictions have no last axis, or by themselves."""


@pytest.mark.every(3)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "sample_weight"])
@pytest.mark.parametrize("case", METRICS)
def test_metrics_that_are_one_number_for_a_batch(case: str, weighted: bool):
    build, metrics = METRICS[case]
    given = dense_data()
    data = Data(given.x, given.y if case == "by_hand" else given.y[:, 0], np.linspace(0.2, 2.0, len(given.x)))
    weights = data.sample_weight if weighted else None
    held_out, results = (data.x[:9], data.y[:9]), []
    for replicas in (None, 1, 3):
        model = seeded(build)
        model.compile(keras.optimizers.SGD(0.01, name="sgd"), "mse", metrics=metrics(), jit_compile=False)
        with nullcontext(model) if replicas is None else distributed(model, replicas=replicas) as front:
            history = fit(front, replace(data, sample_weight=weights), validation_data=held_out)
            evaluated = front.evaluate(
                data.x, data.y, sample_weight=weights, batch_size=BATCH, verbose=0, return_dict=True
            )
        results.append(trained(model, {**history, **{f"evaluated_{k}": v for k, v in evaluated.items()}}, []))
    assert len(results[0].history) == 3 * (1 + len(metrics()))
    assert_equally_trained(results[0], results[1], tolerance=0.0)
    assert_equally_trained(results[0], results[2])


@pytest.mark.parametrize("replicas", [None, 2])
def test_weighted_metrics_of_one_number_fail_as_in_keras(replicas: int | None):
    """Weights of examples have nothing to weigh in a number for the whole batch."""
    given = dense_data()
    data = Data(given.x, given.y[:, 0], np.linspace(0.2, 2.0, len(given.x)))
    model = seeded(_model)
    model.compile("sgd", "mse", weighted_metrics=["mae"], jit_compile=False)
    with nullcontext(model) if replicas is None else distributed(model, replicas=replicas) as front:  # noqa: SIM117
        with pytest.raises(ValueError, match="at most rank 0 but is rank 1"):
            fit(front, data)


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
    expected = train_plain(reference, "sgd")
    assert "gap" in expected.history
    assert_equally_trained(expected, train_distributed(reference, "sgd", replicas=3))
