"""The trainer pattern: one class has the train step, the metrics and the optimizers, and trains any model it is given.

The body of the model and its head have optimizers of their own.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Trainer(keras.Model):
    """Trains a model's body slowly and its head fast."""

    def __init__(self, body: keras.Model, head: keras.Model) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    def compile(self, body_optimizer: Any, head_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.body_optimizer, self.head_optimizer, self.loss_fn = body_optimizer, head_optimizer, loss_fn

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.accuracy]

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.body(x, training=training), training=training)

    def logs(self, y: Any, predicted: Any, loss: Any) -> dict[str, Any]:
        self.loss_tracker.update_state(loss)
        self.accuracy.update_state(y, predicted)
        return {each.name: each.result() for each in self.metrics}

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.loss_fn(y, predicted)
        of_body, of_head = tape.gradient(loss, [self.body.trainable_weights, self.head.trainable_weights])
        self.body_optimizer.apply(of_body, self.body.trainable_weights)
        self.head_optimizer.apply(of_head, self.head.trainable_weights)
        return self.logs(y, predicted, loss)

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        predicted = self(x, training=False)
        return self.logs(y, predicted, self.loss_fn(y, predicted))


def build() -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`."""
    rng = np.random.default_rng(26)
    x, y = rng.normal(size=(26, 7)), rng.integers(3, size=26)
    body = keras.Sequential([keras.Input((7,)), layers.Dense(8, activation="relu")], name="body")
    head = keras.Sequential([keras.Input((8,)), layers.Dense(3)], name="head")
    trainer = Trainer(body, head)
    trainer.compile(
        keras.optimizers.Adam(1e-4), keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return trainer, {"x": x, "y": y, "validation_split": 0.2}
