"""Distributed training equals plain Keras: every builder with every model, replicas and optimizers in turns.

With the long tests every model meets every optimizer, and every builder all optimizers but two; `test_optimizers.py`
has the rest.
`AUTODIST_FULL_MATRIX=1` runs every combination.
"""

import os
from itertools import product

import pytest

from tests.support.models import MODELS, TWICE, ReferenceModel
from tests.support.optimizers import OPTIMIZERS
from tests.support.strategies import BUILDERS
from tests.support.training import assert_equal_training

AXES = {
    "case": list(MODELS),
    "optimizer": [optimizer.name for optimizer in OPTIMIZERS],
    "strategy": list(BUILDERS),
    "replicas": [2, 3],
}
TWICE_AXES = AXES | {"case": list(TWICE), "optimizer": ["momentum", "adam"]}


def _combinations(axes: dict, every: int = 1) -> list[dict]:
    if os.environ.get("AUTODIST_FULL_MATRIX") == "1":
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return [
        {"case": case, "optimizer": _turn(axes["optimizer"], turn // every), "strategy": strategy,
         "replicas": _turn(axes["replicas"], turn + turn // len(axes["optimizer"]))}
        for row, case in enumerate(axes["case"])
        for turn, strategy in enumerate(axes["strategy"], row) if turn % every == 0
    ]  # fmt: skip


def _turn(values: list, turn: int):
    return values[turn % len(values)]


def _label(combination: dict) -> str:
    return "-".join(str(value) for value in combination.values())


@pytest.mark.quick(
    "embedding-rmsprop-PSLoadBalancing-2", "heads-sgd-PartitionedPS-3",
    "own_step-adam-UnevenPartitionedPS-3", "convolution-adafactor-PartitionedAR-3",
    "lstm-adamw-AllReduce-3", "embedding-adam-Sharded-3",
)  # fmt: skip
@pytest.mark.parametrize("combination", _combinations(AXES), ids=_label)
def test_every_weight_slot_and_metric_equals_one_device(combination: dict):
    assert_equal_training(**combination)


@pytest.mark.quick("adversarial-adam-UnevenPartitionedPS-3")
@pytest.mark.parametrize("combination", _combinations(TWICE_AXES, every=2), ids=_label)
def test_a_step_that_applies_twice_equals_one_device(combination: dict):
    assert_equal_training(**combination)


@pytest.mark.quick("0-dense", "6-applies_twice")
@pytest.mark.parametrize("index, reference", list(enumerate(MODELS + TWICE)), ids=str)
def test_replicas_that_share_their_memory_equal_one_device(index: int, reference: ReferenceModel):
    strategy, replicas = ("AllReduce", "PS")[index % 2], (2, 3)[index // 2 % 2]
    assert_equal_training(reference, strategy=strategy, replicas=replicas, share_memory=True)
