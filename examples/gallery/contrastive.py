"""Contrastive pretraining (SimCLR): two views of an image must find each other among the views of all images.

`whole_batch` gives every replica the views of the whole batch. Each replica changes its images at random.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from autodist_core import whole_batch

TEMPERATURE = 0.5


class Contrastive(keras.Model):
    """Trains an encoder with a contrastive loss, and a linear probe on what it gives."""

    def __init__(self, random: Any) -> None:
        super().__init__()
        self.random, self.seeds = random, keras.random.SeedGenerator(11)
        self.encoder = keras.Sequential([
            keras.Input((8, 8, 1)), layers.Conv2D(4, 3, strides=2, activation="relu"),
            layers.Flatten(), layers.Dense(6, activation="tanh"),
        ], name="encoder")  # fmt: skip
        self.projection = keras.Sequential(
            [keras.Input((6,)), layers.Dense(6, activation="relu"), layers.Dense(4)], name="projection"
        )
        self.probe = keras.Sequential([keras.Input((6,)), layers.Dense(3)], name="probe")
        self.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self.probe_optimizer = keras.optimizers.Adam()
        names = ("contrastive_loss", "contrastive_accuracy", "probe_loss", "probe_accuracy")
        mean, accuracy = keras.metrics.Mean, keras.metrics.SparseCategoricalAccuracy
        self.trackers = [kind(name=name) for name, kind in zip(names, (mean, mean, mean, accuracy), strict=True)]

    @property
    def metrics(self) -> list[Any]:
        return self.trackers

    def view(self, images: Any) -> Any:
        shape = (ops.shape(images)[0], 1, 1, 1)
        brighter = self.random.uniform(shape, 0.5, 1.5, seed=self.seeds)
        return images * brighter + 0.1 * self.random.normal(ops.shape(images), seed=self.seeds)

    def train_step(self, data: Any) -> dict[str, Any]:
        images, labels = data
        with tf.GradientTape() as tape:
            one, other = (self.projection(self.encoder(self.view(images))) for _ in range(2))
            one, other = whole_batch((ops.normalize(one), ops.normalize(other)))
            likeness = ops.matmul(one, ops.transpose(other)) / TEMPERATURE
            own = ops.arange(ops.shape(one)[0])
            found = ops.mean(ops.cast(ops.argmax(likeness, axis=1) == own, likeness.dtype))
            loss = (self.loss(own, likeness) + self.loss(own, ops.transpose(likeness))) / 2
        weights = self.encoder.trainable_weights + self.projection.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        with tf.GradientTape() as tape:
            classes = self.probe(self.encoder(images, training=False))
            probe_loss = self.loss(labels, classes)
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply(tape.gradient(probe_loss, weights), weights)
        self.trackers[0].update_state(loss)
        self.trackers[1].update_state(found)
        self.trackers[2].update_state(probe_loss)
        self.trackers[3].update_state(labels, classes)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def build(random: Any = keras.random) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `random` draws the numbers."""
    rng = np.random.default_rng(11)
    return Contrastive(random), {"x": rng.uniform(size=(21, 8, 8, 1)), "y": rng.integers(3, size=21)}
