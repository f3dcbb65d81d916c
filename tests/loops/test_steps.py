"""What a training step of one's own may do: other losses, gradients that are changed, control flow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.loop_steps import STEPS, trained_by
from tests.support.loops import assert_equal_loops

STRATEGIES = ["PS", "AllReduce", "PartitionedPS"]


@pytest.mark.quick(
    "clipped_by_norm-PartitionedPS", "sum_by_global_size-PS", "sum_with_l2-AllReduce", "averaged_weights-AllReduce",
    "decayed_weights-PartitionedPS", "cond_on_a_variable-PS", "while_in_the_forward_pass-AllReduce",
    "some_variables_only-AllReduce", "sharpness_aware-PartitionedPS", "variables_and_examples_at_once-PS",
    "against_the_signs_of_the_examples-PS", "scaled_by_the_optimizer-PS", "applied_if_finite-AllReduce",
    "applied_three_times-PartitionedPS", "gradients_of_two_losses-PartitionedPS",
)  # fmt: skip
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make_step", STEPS, ids=lambda step: step.__name__)
def test_a_step_equals_one_device(make_step: Callable, strategy: str):
    assert_equal_loops(trained_by(make_step), strategy)
