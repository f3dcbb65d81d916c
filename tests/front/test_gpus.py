"""What a plan and a training make of GPUs that this machine has, or has as parts of one card. No GPU is needed."""

import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_core.errors import ResourceSpecError
from autodist_core.strategy import AllReduce, PartitionedAR
from autodist_keras import DistributedModel
from tests.support.models import DENSE, even_data
from tests.support.training import QUIET, compiled

NOTE = "replicas that are parts of one card add their gradients in TensorFlow's ring: NCCL takes each card once only"


def spec_of(gpus: int) -> ResourceSpec:
    return ResourceSpec({"nodes": [{"address": "localhost", "gpus": gpus}]})


@pytest.fixture
def cards(monkeypatch):
    """Lets TensorFlow say that this process sees cards, each divided into so many GPUs; 1 is a card as a whole."""

    def divided(*parts: int):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: list(range(len(parts))))
        configuration = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
        monkeypatch.setattr(
            tf.config, "get_logical_device_configuration",
            lambda card: None if parts[card] == 1 else [configuration] * parts[card],
        )

    return divided


@pytest.mark.parametrize(("parts", "ring", "builder"), [
    ((2,), True, AllReduce), ((1, 2), False, PartitionedAR),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (((1, 1), False, AllReduce), ((2, 1), True, AllReduce))),
], ids=str)  # fmt: skip
def test_parts_of_one_card_use_no_nccl(cards, parts, ring, builder):
    cards(*parts)
    data = even_data()
    plan = str(DistributedModel(compiled(DENSE), spec_of(2), builder()).plan(data.x, data.y))
    reduced = [line for line in plan.splitlines() if "all_reduce(" in line]
    assert reduced and all(("spec=RING" in line) == ring for line in reduced)
    assert (NOTE in plan) == ring
    assert "this machine has no" not in plan


def test_the_parts_of_a_card_count_as_gpus(cards):
    cards(2)
    data = even_data()
    front = DistributedModel(compiled(DENSE), spec_of(3))
    assert "this machine has no GPU:2 that TensorFlow can use" in front.plan(data.x, data.y)
    with pytest.raises(ResourceSpecError) as caught:
        front.fit(data.x, data.y, **QUIET)
    assert str(caught.value) == (
        "localhost:GPU:2: this machine has 2 GPUs that TensorFlow can use. Take them out of 'gpus', and list CPU "
        "devices in 'cpus', or install the driver and TensorFlow for GPUs.")
