"""Training steps that are put together by chance equal one device.

`AUTODIST_DRAWN_STEPS=200` draws that many, `AUTODIST_DRAWN_STEPS=100:200` those from the hundredth on.
"""

import os

import pytest

from tests.support.drawn import Drawn, build, compiling, data
from tests.support.models import ReferenceModel
from tests.support.training import assert_equal_training

START, STOP = ([0, *map(int, os.environ.get("AUTODIST_DRAWN_STEPS", "8").split(":"))])[-2:]

QUICK = map(str, range(START, STOP)) if "AUTODIST_DRAWN_STEPS" in os.environ else ("4",)

DIFFERED = {
    "a variable made of gradients, read between two writes": Drawn(
        "plain", "mean", "tape", "none", "twice", "sgd", "running", "AllReduce", 3, False
    ),
    "zeros for layers that are not in use, clipped by one norm": Drawn(
        "tied", "of two terms", "of a persistent tape", "global norm", "twice", "averaging", "rate", "PS", 2, True
    ),
    "rows of a table in a function, made dense": Drawn(
        "in a function", "regularized", "tape", "value", "by two optimizers", "lion", "largest", "PartitionedPS", 3,
        False,
    ),
    "what a loop's gradients capture": Drawn(
        "looped", "scaled", "symbolic", "decayed", "in pairs", "rmsprop", "rate", "Parallax", 2, True
    ),
    "a recomputation, differentiated for two losses": Drawn(
        "recomputed", "mean", "of a persistent tape", "none", "once", "momentum", "nothing", "Parallax", 2, False
    ),
}
"""Drawn steps that gave other numbers, or were refused, once."""


def _check(choices: Drawn) -> None:
    reference = ReferenceModel("drawn", lambda: build(choices), data, lambda: compiling(choices))
    how = {"strategy": choices.builder, "replicas": choices.replicas, "share_memory": choices.share_memory}
    assert_equal_training(reference, epochs=2, **how)


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("seed", range(START, STOP))
def test_a_step_by_chance_equals_one_device(seed: int):
    choices = Drawn.of(seed)
    try:
        _check(choices)
    except Exception as error:
        error.add_note(str(choices))
        raise


@pytest.mark.parametrize("choices", DIFFERED.values(), ids=DIFFERED)
def test_what_once_differed_equals_one_device(choices: Drawn):
    _check(choices)
