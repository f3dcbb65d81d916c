"""What the plan of a marked function says of metrics."""

import keras
import numpy as np

from autodist_core import AutoDist

SPEC = {"nodes": [{"address": "localhost", "cpus": [0, 1]}]}


def test_a_mean_of_losses_is_exact_and_the_plan_does_not_deny_it():
    mean, values = keras.metrics.Mean(), np.arange(5.0, dtype="float32")
    loss_of = keras.losses.MeanSquaredError()

    with AutoDist(SPEC, "PS") as autodist:

        @autodist.function
        def evaluate(x):
            mean.update_state(loss_of(x, 0 * x))

        plan = evaluate.plan(values)
        evaluate(values)
        evaluate(values[:1])
    assert "not exact" not in plan
    assert float(mean.result()) == (np.mean(values**2) + values[0] ** 2) / 2
