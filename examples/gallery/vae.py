"""A variational autoencoder with a train step of its own, whose latent code is drawn at random.

Each replica draws from a stream of its own. The losses are sums over the pixels and means over the images.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LATENT = 2


class Sampling(layers.Layer):
    """Draws a latent code from a mean and the logarithm of a variance."""

    def __init__(self, random: Any) -> None:
        super().__init__()
        self.random = random
        self.seeds = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        return mean + ops.exp(0.5 * log_variance) * self.random.normal(ops.shape(mean), seed=self.seeds)


class VAE(keras.Model):
    """Trains an encoder and a decoder together."""

    def __init__(self, encoder: keras.Model, decoder: keras.Model) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        names = ("loss", "reconstruction_loss", "kl_loss")
        self.trackers = {name: keras.metrics.Mean(name=name) for name in names}

    @property
    def metrics(self) -> list[Any]:
        return list(self.trackers.values())

    def train_step(self, images: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            mean, log_variance, code = self.encoder(images)
            errors = keras.losses.binary_crossentropy(images, self.decoder(code))
            reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            loss = reconstruction + divergence
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        for tracker, value in zip(self.metrics, (loss, reconstruction, divergence), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.metrics}


def build(random: Any = keras.random) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `random` draws the numbers."""
    images = np.random.default_rng(4).uniform(size=(21, 8, 8, 1))

    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(inputs)
    x = layers.Dense(6, activation="relu")(layers.Flatten()(x))
    mean, log_variance = layers.Dense(LATENT, name="mean")(x), layers.Dense(LATENT, name="log_variance")(x)
    encoder = keras.Model(inputs, [mean, log_variance, Sampling(random)([mean, log_variance])], name="encoder")

    code = keras.Input((LATENT,))
    x = layers.Reshape((4, 4, 4))(layers.Dense(4 * 4 * 4, activation="relu")(code))
    x = layers.Conv2DTranspose(4, 3, activation="relu", strides=2, padding="same")(x)
    decoder = keras.Model(code, layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x), name="decoder")

    model = VAE(encoder, decoder)
    model.compile(keras.optimizers.Adam())
    return model, {"x": images}
