"""A GAN with a train step of its own: two optimizers, and a batch of real and made images one behind the other.

The generator is trained through the discriminator's new weights. Each replica draws latent codes of its own.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LATENT = 4


class GAN(keras.Model):
    """Trains a discriminator, and then the generator against it."""

    def __init__(self, discriminator: keras.Model, generator: keras.Model, random: Any) -> None:
        super().__init__()
        self.discriminator, self.generator, self.random = discriminator, generator, random
        self.seeds = keras.random.SeedGenerator(1337)
        self.d_tracker, self.g_tracker = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self) -> list[Any]:
        return [self.d_tracker, self.g_tracker]

    def train_step(self, real: Any) -> dict[str, Any]:
        examples = ops.shape(real)[0]
        made = self.generator(self.random.normal((examples, LATENT), seed=self.seeds))
        images = ops.concatenate([made, real], axis=0)
        labels = ops.concatenate([ops.ones((examples, 1)), ops.zeros((examples, 1))], axis=0)
        labels += 0.05 * self.random.uniform(ops.shape(labels), seed=self.seeds)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(images))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)

        codes = self.random.normal((examples, LATENT), seed=self.seeds)
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(ops.zeros((examples, 1)), self.discriminator(self.generator(codes)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


def build(random: Any = keras.random) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `random` draws the numbers."""
    images = np.random.default_rng(5).uniform(size=(21, 8, 8, 1))
    discriminator = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 4, strides=2, padding="same"), layers.LeakyReLU(0.2),
        layers.Conv2D(6, 4, strides=2, padding="same"), layers.LeakyReLU(0.2),
        layers.Flatten(), layers.Dense(1),
    ], name="discriminator")  # fmt: skip
    generator = keras.Sequential([
        keras.Input((LATENT,)),
        layers.Dense(2 * 2 * 4), layers.LeakyReLU(0.2), layers.Reshape((2, 2, 4)),
        layers.Conv2DTranspose(6, 4, strides=2, padding="same"), layers.LeakyReLU(0.2),
        layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid"),
    ], name="generator")  # fmt: skip
    model = GAN(discriminator, generator, random)
    model.compile(
        keras.optimizers.Adam(3e-4), keras.optimizers.Adam(3e-4), keras.losses.BinaryCrossentropy(from_logits=True)
    )
    return model, {"x": images}
