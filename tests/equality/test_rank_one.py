"""Predictions without a last axis: Keras reduces their losses over the batch before it weighs them."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests.support.compare import assert_equally_trained
from tests.support.distributed import distributed
from tests.support.models import Data, dense_data
from tests.support.training import fit, seeded, trained


def _model() -> keras.Model:
    inputs = keras.Input((dense_data().x.shape[1],))
    outputs = keras.layers.Reshape(())(keras.layers.Dense(1, name="out")(inputs))
    return keras.Model(inputs, outputs, name="flat")


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
