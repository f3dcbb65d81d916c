"""Where Keras under `MirroredStrategy` differs from one device, and this package does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compare import assert_same
from tests.support.letters import BY_LETTER, FEATURES, fit_ones
from tests.support.training import train_distributed, train_plain

EQUAL = ["A", "A-global", "A-value", "B", "C", "E", "F", "J", "K"]
"""Letters whose outcome is one device's; D is by itself."""
ENDS = {"B": {"scale": 4.0}, "C": {"moving_mean": [0.25, 0.25]}}
"""After an overflow, and from both halves of a batch: numbers that show that what a letter is about has happened."""


@pytest.mark.quick("B-PSLoadBalancing")
@pytest.mark.parametrize(
    ("letter", "builder"), [(letter, ("AllReduce", "PSLoadBalancing")[turn % 2]) for turn, letter in enumerate(EQUAL)]
)
def test_outcome_is_one_devices(letter: str, builder: str):
    build, run = BY_LETTER[letter].build, BY_LETTER[letter].run
    expected = train_plain(build, run).result
    assert_same(expected, train_distributed(build, run, strategy=builder).result)
    assert all(np.allclose(expected[name], value) for name, value in ENDS.get(letter, {}).items())


def test_dropout_masks_differ_between_replicas_and_replica_0_has_one_devices():
    build = BY_LETTER["D"].build
    first = train_plain(build, lambda front, model: fit_ones(front, model, examples=1)).result
    both = train_distributed(build, fit_ones).result
    for step, mask in first.items():
        second = 2 * both[step] - mask
        assert set(np.unique(mask)) == {0.0, 1.0}
        assert set(np.unique(second)) == {0.0, 1.0}, "replica 0's mask is not one device's"
        assert 0 < np.abs(second - mask).sum() < FEATURES
    assert len({tuple(value) for value in both.values()}) == len(both), "masks repeat from step to step"
