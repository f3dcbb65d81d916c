"""A diffusion model (DDIM): a network that finds the noise in an image, with a moving average of its weights.

Each replica draws noise and times of its own. The step itself writes the averages, after the optimizer.
"""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

SIZE, FEATURES, EMA = 8, 4, 0.9


@keras.saving.register_keras_serializable("gallery")
class OfTime(layers.Layer):
    """Gives sines and cosines of the noise's variance, in several frequencies."""

    def call(self, variance: Any) -> Any:
        speeds = 2.0 * math.pi * ops.exp(ops.linspace(0.0, math.log(100.0), FEATURES // 2, dtype=variance.dtype))
        return ops.concatenate([ops.sin(speeds * variance), ops.cos(speeds * variance)], axis=3)


def network() -> keras.Model:
    """Return the network that finds the noise."""
    images, variances = keras.Input((SIZE, SIZE, 1)), keras.Input((1, 1, 1))
    time = layers.UpSampling2D(SIZE)(OfTime()(variances))
    x = layers.Concatenate()([layers.Conv2D(FEATURES, 1)(images), time])
    left = layers.Conv2D(FEATURES, 3, padding="same", activation="swish")(x)
    x = layers.Conv2D(FEATURES, 3, padding="same", activation="swish")(layers.AveragePooling2D(2)(left))
    x = layers.Concatenate()([layers.UpSampling2D(2)(x), left])
    return keras.Model([images, variances], layers.Conv2D(1, 1)(x), name="network")


class Diffusion(keras.Model):
    """Adds noise to images, and trains a network to find it."""

    def __init__(self, normalizer: Any, random: Any) -> None:
        super().__init__()
        self.normalizer, self.random = normalizer, random
        self.network = network()
        self.averaged = keras.models.clone_model(self.network)
        self.averaged.set_weights(self.network.get_weights())
        self.seeds = keras.random.SeedGenerator(9)
        self.tracker = keras.metrics.Mean(name="noise_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, images: Any) -> dict[str, Any]:
        images = self.normalizer(images, training=True)
        noises = self.random.normal(ops.shape(images), seed=self.seeds)
        times = self.random.uniform((ops.shape(images)[0], 1, 1, 1), seed=self.seeds)
        angles = math.acos(0.95) + times * (math.acos(0.02) - math.acos(0.95))
        noisy = ops.cos(angles) * images + ops.sin(angles) * noises
        with tf.GradientTape() as tape:
            found = self.network([noisy, ops.square(ops.sin(angles))], training=True)
            loss = self.loss(noises, found)
        weights = self.network.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(loss)
        for weight, average in zip(self.network.weights, self.averaged.weights, strict=True):
            average.assign(EMA * average + (1 - EMA) * weight)
        return {"noise_loss": self.tracker.result()}


def build(random: Any = keras.random) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `random` draws the numbers."""
    images = np.random.default_rng(8).uniform(size=(21, SIZE, SIZE, 1))
    normalizer = layers.Normalization()
    normalizer.adapt(images)
    model = Diffusion(normalizer, random)
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), keras.losses.MeanAbsoluteError())
    return model, {"x": images}
