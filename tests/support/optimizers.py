"""The table of optimizers that the cross-product tests draw from."""

from collections.abc import Callable
from dataclasses import dataclass

import keras


@dataclass(frozen=True)
class ReferenceOptimizer:
    """One optimizer under a fixed name, so that the names of its variables are the same in every training."""

    name: str
    make: Callable[[], keras.optimizers.Optimizer]

    def __str__(self) -> str:
        return self.name


OPTIMIZERS = (
    ReferenceOptimizer("sgd", lambda: keras.optimizers.SGD(0.1, name="sgd")),
    ReferenceOptimizer("momentum", lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, name="momentum")),
    ReferenceOptimizer("adam", lambda: keras.optimizers.Adam(0.01, name="adam")),
    ReferenceOptimizer("adamw", lambda: keras.optimizers.AdamW(0.01, weight_decay=0.02, name="adamw")),
    ReferenceOptimizer("rmsprop", lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, name="rmsprop")),
    ReferenceOptimizer("adagrad", lambda: keras.optimizers.Adagrad(0.1, name="adagrad")),
    ReferenceOptimizer("lion", lambda: keras.optimizers.Lion(0.003, weight_decay=0.01, name="lion")),
    ReferenceOptimizer("adafactor", lambda: keras.optimizers.Adafactor(0.02, name="adafactor")),
)

BY_NAME = {optimizer.name: optimizer for optimizer in OPTIMIZERS}


def make_optimizer(name: str) -> keras.optimizers.Optimizer:
    """A fresh optimizer of the table."""
    return BY_NAME[name].make()
