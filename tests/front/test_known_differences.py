"""Where Keras under `MirroredStrategy` differs from one device, and this package does not.

Each letter is a test that passes here, with a companion that shows the mirrored outcome to be another one (or an
error), so that the first cannot pass by accident. The companions say nothing about this package, and are long.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compare import TOLERANCE, assert_same, relative_error
from tests.support.letters import BY_LETTER, FEATURES, fit_ones
from tests.support.mirrored import outcomes_under_mirrored_strategy
from tests.support.training import plain, train_distributed, train_plain

EQUAL = ["A", "A-global", "A-value", "B", "C", "E", "F", "J", "K"]
"""Letters whose outcome is one device's; D is by itself."""


@pytest.fixture(scope="module")
def mirrored() -> dict[str, dict]:
    return outcomes_under_mirrored_strategy()


def _on_one_device(letter: str) -> dict[str, np.ndarray]:
    return plain(BY_LETTER[letter].build, BY_LETTER[letter].run).result


@pytest.mark.quick("A-AllReduce", "B-PSLoadBalancing", "J-AllReduce")
@pytest.mark.parametrize("builder", ["AllReduce", "PSLoadBalancing"])
@pytest.mark.parametrize("letter", EQUAL)
def test_outcome_is_one_devices(letter: str, builder: str):
    found = train_distributed(BY_LETTER[letter].build, BY_LETTER[letter].run, strategy=builder)
    assert_same(_on_one_device(letter), found.result)


@pytest.mark.long
@pytest.mark.parametrize("letter", ["A", "A-global", "A-value", "C", "K"])
def test_mirrored_companion_ends_with_other_values(letter: str, mirrored):
    expected, actual = _on_one_device(letter), mirrored[letter]
    assert "error" not in actual
    assert max(relative_error(value, actual["values"][name]) for name, value in expected.items()) > 1e6 * TOLERANCE


@pytest.mark.long
def test_mirrored_companion_of_moving_averages_has_replica_0s(mirrored):
    assert _on_one_device("C")["moving_mean"] == pytest.approx([0.25, 0.25])
    assert mirrored["C"]["values"]["moving_mean"] == pytest.approx([0.0, 0.0])


@pytest.mark.long
def test_mirrored_companion_does_not_see_the_second_replicas_overflow(mirrored):
    expected = _on_one_device("B")
    assert expected["scale"] == 4.0
    assert all(np.isfinite(value).all() for value in expected.values())
    assert not all(np.isfinite(value).all() for value in mirrored["B"]["values"].values())


@pytest.mark.long
@pytest.mark.parametrize("letter", ["E", "F"])
def test_mirrored_companion_of_conditional_updates_raises(letter: str, mirrored):
    assert _on_one_device(letter)
    assert mirrored[letter].get("error")


@pytest.mark.long
def test_mirrored_companion_of_string_inputs_raises(mirrored):
    assert _on_one_device("J")
    assert "string" in mirrored["J"]["error"]


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


@pytest.mark.long
def test_mirrored_companion_draws_one_mask_for_all_replicas(mirrored):
    for mean in mirrored["D"]["values"].values():
        assert set(np.unique(mean)) == {0.0, 1.0}
