"""Models with training steps of their own, and what Keras's tracing captures of a model."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.models import dense_data, ready
from tests.support.steps import OwnStep
from tests.support.training import distributed, seeded

QUIET = {"verbose": 0, "batch_size": 6, "shuffle": False, "epochs": 2}
DATA = dense_data(15)
"""Batches of six, six and three."""


def gradients_of(model: keras.Model, data: Any, scaled: bool = False) -> list[Any]:
    """Gradients of the mean square, of a loss that the optimizer has scaled or of the loss itself."""
    x, y = data
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        loss = model.optimizer.scale_loss(loss) if scaled else loss
    return tape.gradient(loss, model.trainable_variables)


def stepping(step: Callable[[keras.Model, Any], None], prepare: Callable = lambda model: None) -> Callable:
    """A builder of compiled models whose training step is `step(model, data)`."""

    class Stepping(OwnStep):
        """Two dense layers."""

        def __init__(self) -> None:
            super().__init__("stepping")
            prepare(self)

        def train_step(self, data):
            step(self, data)
            return {"squares": self.tracker.result()}

    return lambda: compiled(Stepping)


def compiled(build: Callable[[], keras.Model]) -> keras.Model:
    """The model with its weights and an optimizer with memory."""
    model = ready(seeded(build), keras.optimizers.SGD(0.2, momentum=0.5, name="sgd"), jit_compile=False)
    model(DATA.x)
    return model


def assert_refused(model: keras.Model, said: str, kind: type[Exception] = CaptureError, **settings: Any) -> str:
    """A training is refused with these words, and changes no weight. Gives the whole text."""
    before = model.get_weights()
    with distributed(model, **settings) as front, pytest.raises(kind, match=said) as refusal:
        front.fit(DATA.x, DATA.y, **QUIET)
    assert all(np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True))
    return str(refusal.value)
