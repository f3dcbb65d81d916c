"""What the tolerance of every other comparison rests on: rounding is far below it, real differences far above."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.compare import TOLERANCE, Trained, assert_equally_trained, assert_finite, relative_error, worst_error
from tests.support.models import BY_NAME as MODELS_BY_NAME
from tests.support.models import DENSE, MODELS, TWICE, ReferenceModel
from tests.support.optimizers import OPTIMIZERS
from tests.support.training import permuted_within_batches, plain, train_plain

NOISE = TOLERANCE / 10


@pytest.mark.quick("dense")
@pytest.mark.parametrize("reference", MODELS + TWICE, ids=str)
def test_the_order_of_rows_within_a_batch_is_far_below_the_tolerance(reference: ReferenceModel):
    permuted = train_plain(reference, data=permuted_within_batches(reference.data()))
    assert_finite(permuted)
    assert 0 < worst_error(plain(reference), permuted) < NOISE


@pytest.mark.parametrize("optimizer", [o.name for o in OPTIMIZERS if o.name != "adam"])
def test_no_optimizer_amplifies_rounding_up_to_the_tolerance(optimizer: str):
    permuted = train_plain(DENSE, optimizer=optimizer, data=permuted_within_batches(DENSE.data()))
    assert 0 < worst_error(plain(DENSE, optimizer=optimizer), permuted) < NOISE


def test_counting_one_example_twice_is_far_above_the_tolerance():
    data = DENSE.data()
    rows = np.arange(len(data.x))
    rows[-1] = 0
    counted_twice = train_plain(DENSE, optimizer="sgd", data=data.rows(rows))
    assert worst_error(plain(DENSE, optimizer="sgd"), counted_twice) > 1e6 * TOLERANCE


def test_the_sliced_reference_with_two_slices_is_another_training():
    reference = MODELS_BY_NAME["convolution"]
    whole, halves = (plain(reference, optimizer="sgd", replicas=replicas) for replicas in (1, 2))
    assert worst_error(whole, halves) > 1e6 * TOLERANCE


@pytest.mark.parametrize(
    "expected, actual, error",
    [
        ([1.0, -4.0], [1.5, -4.0], 0.125),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 0.0], [0.0, 1e-300], np.inf),
        ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([1.0, 2.0], [[1.0, 2.0]], np.inf),
    ],
)
def test_relative_error_is_measured_against_the_largest_entry(expected, actual, error):
    assert relative_error(np.array(expected), np.array(actual)) == error


def test_a_difference_is_reported_by_name():
    one = Trained({"loss": np.ones(2)}, {"w": np.ones(3)}, {"iteration": np.array(5)})
    result = {"loss": np.ones(2), "mae": np.ones(2)}
    other = Trained(result, {"w": np.array([1, 1, 1 + 1e-11])}, {"iteration": np.array(4)})
    with pytest.raises(AssertionError) as failure:
        assert_equally_trained(one, other)
    reported = {line.split(":")[0] for line in str(failure.value).splitlines()}
    assert {"result/mae", "weights/w", "optimizer/iteration"} <= reported
    assert "result/loss" not in reported


def test_a_diverged_training_is_no_expectation():
    broken = Trained({}, {"w": np.array([np.nan])}, {})
    with pytest.raises(AssertionError, match="weights/w is not finite"):
        assert_equally_trained(broken, replace(broken))
