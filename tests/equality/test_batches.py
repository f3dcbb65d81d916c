"""Batches of every shape: even, uneven, smaller than the number of replicas, weighted, and several a call."""

import numpy as np
import pytest

from tests.support.models import DENSE, dense_data, even_data
from tests.support.training import QUIET, assert_equal_training, compiled, distributed


@pytest.mark.quick("17-8-3-True", "10-2-3-False")
@pytest.mark.parametrize(
    "examples, batch, replicas, share",
    [
        (16, 8, 2, False),  # everything divides
        (22, 8, 2, True),  # a shorter last batch that divides
        (22, 8, 3, False),  # neither divides: 3 3 2, then 2 2 2
        (19, 8, 2, False),  # a last batch of 2 1
        (17, 8, 3, True),  # a last batch of one example for three replicas
        (10, 2, 3, False),  # every batch is smaller than the number of replicas
        (3, 8, 3, False),  # one batch an epoch, smaller than asked for
        (21, 7, 2, True),  # batches all alike that do not divide: 4 3
    ],
)
def test_sizes(examples: int, batch: int, replicas: int, share: bool):
    assert_equal_training(DENSE, replicas=replicas, share_memory=share, data=dense_data(examples), batch_size=batch)


TRAININGS = 2


@pytest.mark.parametrize(("strategy", "share_memory"), [("PS", None), ("AllReduce", False), ("PartitionedPS", False)])
def test_trainings_repeat(strategy: str, share_memory: bool | None):
    """Four replicas: sums of more than two tensors have an order, and it must be the same each time."""
    data, ends = even_data(), []
    for _ in range(TRAININGS):
        model = compiled(DENSE, "adam")
        with distributed(model, strategy, replicas=4, share_memory=share_memory) as front:
            losses = front.fit(data.x, data.y, epochs=10, **QUIET).history["loss"]
        ends.append([np.asarray(losses), *model.get_weights()])
    names = ["losses", *(weight.path for weight in model.weights)]
    for name, values in zip(names, zip(*ends, strict=True), strict=True):
        assert all(np.array_equal(values[0], value) for value in values[1:]), name
