"""The same program run twice from one seed: with a plain Keras model, and with a distributed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from autodist_core.strategy import StrategyBuilder
from tests.support.compare import TOLERANCE, assert_same, named
from tests.support.distributed import builder_named, distributed
from tests.support.models import BATCH, DENSE, ReferenceModel
from tests.support.training import SEED, build_all, seeded

Program = Callable[[Any, keras.Model], Mapping]
"""Takes what has `fit` and its siblings, and the model behind it; returns numbers by name (nested as it likes)."""

QUIET = {"verbose": 0, "batch_size": BATCH, "shuffle": False}
"""What most calls of `fit` here have in common."""


def flat(values: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Nested dicts and lists as one dict of arrays."""
    if isinstance(values, Mapping):
        items = [(str(key), value) for key, value in values.items()]
    elif isinstance(values, (list, tuple)):
        items = [(str(index), value) for index, value in enumerate(values)] or [("empty", 1)]
    else:
        return {prefix: np.asarray(values)}
    return {name: leaf for key, value in items for name, leaf in flat(value, f"{prefix}/{key}".lstrip("/")).items()}


def state(model: keras.Model) -> dict[str, dict]:
    """Weights and optimizer variables by name."""
    return {"weights": named(model.weights), "optimizer": named(model.optimizer.variables)}


def run_plain(
    program: Program, reference: ReferenceModel = DENSE, optimizer: str = "adam", *, built: bool = True, **settings
) -> dict:
    """The program's result on one device, and the state it left.

    One that trains, and on data like the model's in the table, finds all `built`.
    """
    model = seeded(reference.build)
    model.compile(**{**reference.compile_arguments(optimizer), **settings})
    if built:
        build_all(model, reference.data())
    keras.utils.set_random_seed(SEED + 1)
    return flat({"result": program(model, model), "state": state(model)})


def run_distributed(
    program: Program,
    reference: ReferenceModel = DENSE,
    optimizer: str = "adam",
    *,
    replicas: int = 2,
    builder: str | StrategyBuilder = "AllReduce",
    share_memory: bool = False,
    fused_updates: bool | None = None,
    **settings,
) -> dict:
    """The program's result on replicas, and the state it left in the user's model."""
    model = seeded(reference.build)
    arguments = {**reference.compile_arguments(optimizer), **settings}
    with distributed(model, replicas=replicas, share_memory=share_memory, fused_updates=fused_updates) as front:
        front.compile(**arguments, strategy=builder_named(builder))
        keras.utils.set_random_seed(SEED + 1)
        return flat({"result": program(front, model), "state": state(model)})


def assert_same_outcome(
    program: Program,
    reference: ReferenceModel = DENSE,
    optimizer: str = "adam",
    *,
    replicas: int = 2,
    builder: str = "AllReduce",
    share_memory: bool = False,
    tolerance: float = TOLERANCE,
    built: bool = True,
    settings: Callable[[], dict] = dict,
) -> dict:
    """Both results and both states are equal; gives the plain one, for what a test wants to know besides.

    `settings` makes fresh arguments of `compile`, which go before the reference model's own.
    """
    expected = run_plain(program, reference, optimizer, built=built, **settings())
    actual = run_distributed(
        program, reference, optimizer, replicas=replicas, builder=builder, share_memory=share_memory, **settings()
    )
    assert_same(expected, actual, tolerance)
    return expected
