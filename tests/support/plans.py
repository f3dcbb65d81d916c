"""What a plan says of a model that is made for it: the notes on what replicas do otherwise than one device."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from tests.support.layers import Does
from tests.support.training import distributed, seeded

COUPLED = re.compile("((maybe )?not exact: (?!each replica draws|batch statistics are)|whether )")
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
    return [line for line in lines if COUPLED.match(line)]


def without_memory(plan: Any) -> list[str]:
    """The lines of a plan but those on memory, which depend on the batch."""
    return [line for line in str(plan).splitlines() if not line.startswith("  memory of ")]


def side_by_side(functions: Mapping[str, Callable[[Any], Any]]) -> Callable[[], keras.Model]:
    """Builds a model with one layer for each function, each beside the others: one plan has a note on each of them.

    The layer `case_NAME` gets four numbers of each example.
    """

    def build() -> keras.Model:
        x = keras.Input((5,))
        hidden = layers.Dense(4, activation="tanh", name="first")(x)
        made = [Does(function, f"case_{as_name(name)}")(hidden) for name, function in functions.items()]
        return keras.Model(x, layers.Dense(1, name="last")(layers.Concatenate()(made)))

    return build


def headed(names: Iterable[str], units: int = 1) -> Callable[[], keras.Model]:
    """Builds a model with a head for each name, whose loss is an entry of `compile(loss={name: ...})`."""

    def build() -> keras.Model:
        x = keras.Input((5,))
        return keras.Model(x, {name: layers.Dense(units, name=name)(x) for name in map(as_name, names)})

    return build


def as_name(text: str) -> str:
    """A case's name as the name of a layer or of a function.

    >>> as_name("many, chosen")
    'many_chosen'
    """
    return re.sub(r"\W+", "_", text)


def operations(notes: Iterable[str], begin: str, end: str = "") -> dict[str, str]:
    """The operation that each note names, by what the group `owner` of the patterns around it matches."""
    found = [re.match(rf"{begin}(?P<operation>\w+) \(\S+\){end}", note) for note in notes]
    return {match["owner"]: match["operation"] for match in found if match}
