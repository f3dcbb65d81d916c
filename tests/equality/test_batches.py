"""Batches of every shape: even, uneven, smaller than the number of replicas, weighted, and several a call."""

import numpy as np
import pytest

from tests.support.models import DENSE, dense_data
from tests.support.training import assert_equal_training


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


def test_sample_weights_that_differ_between_replicas():
    data = dense_data()
    weights = np.linspace(0.0, 3.0, len(data.x)) ** 2
    assert_equal_training(DENSE, replicas=3, data=type(data)(data.x, data.y, weights))
