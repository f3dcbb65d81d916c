"""The models of examples/gallery: each equals one device, or the plan says before training why it does not.

Where a model draws random numbers, the comparison gives every example the same ones. The plan's note on the draws is
compared with the model as it is.
"""

import inspect
import re
from functools import cache
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest

from tests.network.lan import ROOT
from tests.support.compare import TOLERANCE, assert_equally_trained
from tests.support.programs import module_of
from tests.support.training import distributed, run, seeded

GALLERY = ROOT / "examples/gallery"
NAMES = sorted(path.stem for path in GALLERY.glob("[a-z]*.py"))
STRATEGIES = ("Parallax", "PS", "AllReduce", "PartitionedPS")
"""The models take turns."""
SETTINGS = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
"""21 examples in batches of 8 on three replicas: 3, 3 and 2 of each batch, and 2, 2 and 1 of the last one."""

FLOAT32 = {"ctc_speech": 1e-5}
"""TensorFlow computes CTC in float32, and the rounding there is all that differs."""


@cache
def module(name: str) -> ModuleType:
    return module_of(GALLERY / f"{name}.py")


class SameForEach:
    """Draws the same numbers for each example, so that it does not matter which replica draws them."""

    def normal(self, shape, seed=None):
        return self.uniform(shape, -2.0, 2.0)

    def uniform(self, shape, minval=0.0, maxval=1.0, seed=None):
        numbers = np.random.default_rng(len(shape)).uniform(minval, maxval, size=tuple(shape[1:]))
        return keras.ops.broadcast_to(keras.ops.cast(numbers, keras.config.floatx()), shape)


def built(name: str, **arguments: Any) -> tuple[keras.Model, dict[str, Any]]:
    model, data = seeded(lambda: module(name).build(**arguments))
    return model, {**SETTINGS, **data}


def reasons(dm: Any, data: dict[str, Any]) -> list[str]:
    """The plan's notes on what is not one device's, or may not be."""
    plan = str(dm.plan(*(data.get(part) for part in ("x", "y", "sample_weight"))))
    return re.findall(r"note: ((?:not exact|whether|each replica draws|batch statistics).*)", plan)


def logged(data: dict[str, Any]) -> Any:
    return lambda front, _: front.fit(**data).history


DRAWING = [name for name in NAMES if "random" in inspect.signature(module(name).build).parameters]


@pytest.mark.quick("trainer_pattern")
@pytest.mark.parametrize("name", NAMES)
def test_it_equals_one_device(name: str):
    arguments = {"random": SameForEach()} if name in DRAWING else {}
    model, data = built(name, **arguments)
    expected = run(logged(data), model, model)
    model, data = built(name, **arguments)
    with distributed(model, STRATEGIES[NAMES.index(name) % len(STRATEGIES)], replicas=3) as front:
        assert reasons(front, data) == []
        actual = run(logged(data), front, model)
    assert_equally_trained(expected, actual, FLOAT32.get(name, TOLERANCE))


@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`")
@pytest.mark.parametrize("name", NAMES)
def test_it_equals_one_device_under_xla(name: str):
    """Keras does not compile some of the models, which have strings; their steps are not compiled here either."""
    arguments = {"random": SameForEach()} if name in DRAWING else {}
    model, data = built(name, **arguments)
    model.jit_compile = True
    expected = run(logged(data), model, model)
    model, data = built(name, **arguments)
    model.jit_compile = True
    with distributed(model, replicas=2, share_memory=None) as front:
        actual = run(logged(data), front, model)
    assert_equally_trained(expected, actual, FLOAT32.get(name, TOLERANCE))


def planned(name: str, **arguments: Any) -> list[str]:
    model, data = built(name, **arguments)
    with distributed(model, replicas=3) as front:
        return reasons(front, data)


NORMAL, UNIFORM = (f"stateless_random_{kind}{{}}/StatelessRandom{kind.title()}V2" for kind in ("normal", "uniform"))
WHERE = {
    "contrastive": f"{UNIFORM.format('')}, {NORMAL.format('')}, {UNIFORM.format('_1')} and 1 more",
    "ddim": f"{NORMAL.format('')}, {UNIFORM.format('')}",
    "gan": f"{NORMAL.format('')}, {UNIFORM.format('')}, {NORMAL.format('_1')}",
    "masked_autoencoder": "masked_autoencoder",
    "vae": "sampling",
    "wgan_gp": f"{NORMAL.format('')}, {UNIFORM.format('')}, {NORMAL.format('_1')} and 2 more",
}
"""The layer that draws, or else the operations."""


@pytest.mark.parametrize("name", DRAWING)
def test_the_plan_says_where_each_replica_draws_its_own_numbers(name: str):
    draws = f"not exact: each replica draws its own random numbers in {WHERE[name]}; replica 0 draws the numbers of"
    assert planned(name) == [f"{draws} one device"]


COUPLED = {
    "ner": ({"loss": lambda loss: loss}, "loss 'of_words'"),
    "two_tower": ({"loss": lambda loss: loss}, "loss 'in_batch_softmax'"),
    "mixture_of_experts": ({"gather": lambda values: values}, "an add_loss term"),
}


@pytest.mark.parametrize("name", COUPLED)
def test_without_the_whole_batch_the_plan_says_what_couples_examples(name: str):
    arguments, where = COUPLED[name]
    (reason,) = planned(name, **arguments)
    assert reason.startswith("not exact: ") and where in reason
