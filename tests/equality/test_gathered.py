"""Replicas that gather weights when they use them train as one device does."""

import pytest

from tests.equality.test_more_models import MODELS as MORE
from tests.support.models import MODELS, TWICE
from tests.support.training import assert_equal_training

# Loops, weights of two layers, tables that are also read whole, conditionals, recomputation, updates by turns.
CASES = {model.name: model for model in (*MODELS, *TWICE, *MORE.values()) if model.name != "deep"}


@pytest.mark.quick("tied_table-sgd-2", "adversarial-adam-3")
@pytest.mark.parametrize(
    ("name", "optimizer", "replicas"),
    [(name, *(("sgd", 2), ("adam", 3))[turn % 2]) for turn, name in enumerate(CASES)],
)
def test_gathered_weights_equal_those_of_one_device(name: str, optimizer: str, replicas: int):
    assert_equal_training(CASES[name], optimizer=optimizer, strategy="Gathered", replicas=replicas)
