"""What a training step of one's own may do: other losses, gradients that are changed, control flow."""

import pytest

from tests.support.loop_steps import STEPS
from tests.support.loops import assert_equal_loops

STRATEGIES = ["PS", "AllReduce", "PartitionedPS"]


@pytest.mark.quick(
    "clipped_by_norm-PartitionedPS", "sum_by_global_size-AllReduce", "cond_on_a_variable-AllReduce",
    "while_in_the_forward_pass-PS", "sharpness_aware-PartitionedPS", "applied_three_times-PS",
    "against_the_signs_of_the_examples-PartitionedPS", "gradients_of_two_losses-PS",
)  # fmt: skip
@pytest.mark.parametrize(("step", "strategy"), [(step, STRATEGIES[turn % 3]) for turn, step in enumerate(STEPS)])
def test_a_step_equals_one_device(step: str, strategy: str):
    assert_equal_loops(STEPS[step], strategy)
