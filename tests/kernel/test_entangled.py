"""Updates that mix variables: equal to one device, or refused by name, never silently something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import keras
import pytest

from autodist_core.errors import NotYetError
from tests.support.compare import assert_same
from tests.support.models import BATCH, ReferenceModel, dense_data
from tests.support.twins import run_distributed, run_plain

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05, name="adam"),
    "accumulation": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2, name="sgd"),
    "accumulation, clipped": lambda: keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=3, global_clipnorm=0.05, name="adam"
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, name="adam"), initial_scale=4.0, dynamic_growth_steps=2, name="scaled"
    ),
    "average": lambda: keras.optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2, name="adam"
    ),
}
EXACT_ON_TWO_SERVERS = ("global_clipnorm",)


def _model() -> keras.Model:
    first, out = keras.layers.Dense(3, activation="tanh", name="first"), keras.layers.Dense(1, name="out")
    return keras.Sequential([keras.Input((5,), name="x"), first, out], name="small")


def _program(front, model) -> dict:
    data = dense_data(3 * BATCH - 3)
    return front.fit(data.x, data.y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history


def _reference(make: Callable[[], keras.optimizers.Optimizer]) -> ReferenceModel:
    return ReferenceModel("small", _model, dense_data, lambda: {"loss": "mse", "optimizer": make()})


@cache
def _expected(name: str) -> dict:
    return run_plain(_program, _reference(OPTIMIZERS[name]))


def _found(name: str, **options) -> dict:
    return run_distributed(_program, _reference(OPTIMIZERS[name]), **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_reduce_equals_one_device(name: str):
    assert_same(_expected(name), _found(name))


def test_replicas_that_share_their_memory_equal_one_device():
    name = "accumulation, clipped"
    assert_same(_expected(name), _found(name, share_memory=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_two_servers_equal_one_device_or_say_who_is_in_the_way(name: str):
    try:
        found = _found(name, builder="PSLoadBalancing")
    except NotYetError as refusal:
        assert name not in EXACT_ON_TWO_SERVERS, refusal
        assert "first/kernel" in str(refusal) or "optimizer/" in str(refusal)
        assert "server_localhost_CPU_0" in str(refusal) and "server_localhost_CPU_1" in str(refusal)
        assert "Give the" in str(refusal) and "one synchronizer and one destination" in str(refusal)
    else:
        assert_same(_expected(name), found)


@pytest.mark.parametrize("name", ["accumulation", "loss scale", "average"])
def test_one_server_owns_everything_that_is_mixed(name: str):
    assert_same(_expected(name), _found(name, builder="PS"))


def test_the_expectations_are_not_those_of_a_plain_optimizer():
    """Else equality would say nothing about clipping, accumulating and averaging."""
    adam = run_plain(_program, _reference(lambda: keras.optimizers.Adam(0.01, name="adam")))
    for name in ("global_clipnorm", "accumulation, clipped", "average"):
        kernel = "state/weights/small/first/kernel"
        assert abs(_expected(name)[kernel] - adam[kernel]).max() > 1e-5
