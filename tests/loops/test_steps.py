"""What a training step of one's own may do: other losses, gradients that are changed, control flow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.loop_steps import STEPS, trained_by
from tests.support.loops import assert_equal_loops

STRATEGIES = ["PS", "AllReduce", "PartitionedPS"]


@pytest.mark.quick(
    "clipped_by_norm-PartitionedPS", "sum_by_global_size-AllReduce", "sum_with_l2-PartitionedPS",
    "averaged_weights-AllReduce", "cond_on_a_variable-AllReduce", "while_in_the_forward_pass-AllReduce",
    "some_variables_only-AllReduce", "sharpness_aware-PartitionedPS", "against_the_signs_of_the_examples-PS",
    "applied_three_times-PS", "gradients_of_two_losses-PartitionedPS",
)  # fmt: skip
@pytest.mark.parametrize(("make_step", "strategy"), [
    pytest.param(step, strategy, id=f"{step.__name__}-{strategy}")
    for turn, step in enumerate(STEPS) for place, strategy in enumerate(STRATEGIES) if place != turn % 3
])  # fmt: skip
def test_a_step_equals_one_device(make_step: Callable, strategy: str):
    assert_equal_loops(trained_by(make_step), strategy)
