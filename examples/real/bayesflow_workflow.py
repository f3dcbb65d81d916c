"""BayesFlow learns to infer the parameters of a simulator from what it makes."""

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # BayesFlow takes JAX or PyTorch where one is installed
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import bayesflow as bf
import keras
import numpy as np

from autodist_core import ResourceSpec, whole_batch
from autodist_keras import DistributedModel

# Layers that standardize have running statistics: of the whole batch, not of a replica's part of it.
standardize = bf.networks.helpers.standardization.standardize.Standardize
of_replica = standardize._update_moments
standardize._update_moments = lambda layer, values, index: of_replica(layer, whole_batch(values), index)


def train(distributed: bool = True) -> tuple[keras.Model, dict[str, Any]]:
    """Train the workflow's approximator, and return it, and its history with some samples."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)

    def prior() -> dict[str, Any]:
        return {"theta": rng.normal(size=2)}

    def likelihood(theta: Any) -> dict[str, Any]:
        return {"observed": theta + rng.normal(size=2)}

    workflow = bf.BasicWorkflow(
        simulator=bf.make_simulator([prior, likelihood]),
        inference_network=bf.networks.CouplingFlow(depth=2, subnet_kwargs={"widths": (16,), "dropout": 0}),
        inference_variables=["theta"],
        inference_conditions=["observed"],
        optimizer=keras.optimizers.SGD(0.001),
    )
    approximator = workflow.approximator
    if distributed:
        approximator.fit = DistributedModel(approximator, ResourceSpec.local(cpus=2)).fit
    history = workflow.fit_offline(workflow.simulate(250), epochs=2, batch_size=50, verbose=0)
    return approximator, history.history


if __name__ == "__main__":
    print(train()[1])
