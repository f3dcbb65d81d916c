"""What a plan says of a model that is made for it: the notes on what replicas do otherwise than one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tests.support.training import distributed, seeded

COUPLED = ("not exact: ", "whether ")
"""How the notes begin that are about examples together."""


def numbers(*shape: int) -> np.ndarray:
    """Eight examples of a shape."""
    return np.random.default_rng(3).normal(size=(8, *shape))


def notes_of(build: Callable[[], keras.Model], x: Any, y: Any, replicas: int = 2, **settings: Any) -> list[str]:
    """The notes on examples together, of the step that a batch captures; nothing runs."""
    model = seeded(build)
    model.compile(**{"optimizer": "sgd", "loss": "mse", "jit_compile": False, **settings})
    with distributed(model, replicas=replicas) as front:
        lines = [line.strip().removeprefix("note: ") for line in str(front.plan(x, y)).splitlines()]
    return [line for line in lines if line.startswith(COUPLED)]
