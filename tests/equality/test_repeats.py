"""Two trainings from the same weights on the same data end with the same bits."""

import numpy as np
import pytest

from tests.support.models import DENSE, even_data
from tests.support.training import QUIET, compiled, distributed

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
