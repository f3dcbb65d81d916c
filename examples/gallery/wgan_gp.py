"""A Wasserstein GAN: several updates of the critic in one step, and a penalty on the gradient of its inputs.

Each replica draws latent codes and interpolations of its own.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LATENT, CRITIC_STEPS, PENALTY = 4, 2, 10.0


class WGAN(keras.Model):
    """Trains a critic a few times, and then the generator against it."""

    def __init__(self, critic: keras.Model, generator: keras.Model, random: Any) -> None:
        super().__init__()
        self.critic, self.generator, self.random = critic, generator, random
        self.seeds = keras.random.SeedGenerator(7)

    def compile(self, d_optimizer: Any, g_optimizer: Any, d_loss_fn: Any, g_loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_loss_fn, self.g_loss_fn = d_loss_fn, g_loss_fn

    def gradient_penalty(self, real: Any, made: Any) -> Any:
        between = self.random.uniform((ops.shape(real)[0], 1, 1, 1), seed=self.seeds)
        mixed = real + between * (made - real)
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            scores = self.critic(mixed, training=True)
        norms = ops.sqrt(ops.sum(ops.square(tape.gradient(scores, mixed)), axis=(1, 2, 3)))
        return ops.mean(ops.square(norms - 1.0))

    def train_step(self, real: Any) -> dict[str, Any]:
        examples = ops.shape(real)[0]
        for _ in range(CRITIC_STEPS):
            codes = self.random.normal((examples, LATENT), seed=self.seeds)
            with tf.GradientTape() as tape:
                made = self.generator(codes, training=True)
                cost = self.d_loss_fn(self.critic(real, training=True), self.critic(made, training=True))
                d_loss = cost + PENALTY * self.gradient_penalty(real, made)
            weights = self.critic.trainable_variables
            self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        codes = self.random.normal((examples, LATENT), seed=self.seeds)
        with tf.GradientTape() as tape:
            g_loss = self.g_loss_fn(self.critic(self.generator(codes, training=True), training=True))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        return {"d_loss": d_loss, "g_loss": g_loss}


def build(random: Any = keras.random) -> tuple[keras.Model, dict[str, Any]]:
    """Return the compiled model and the arguments of `fit`. `random` draws the numbers."""
    images = np.random.default_rng(6).normal(size=(21, 8, 8, 1))
    # The last layer of a critic needs no bias: the difference of two means does not depend on it.
    critic = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, strides=2, padding="same"), layers.LeakyReLU(0.2),
        layers.Flatten(), layers.Dense(1, use_bias=False),
    ], name="critic")  # fmt: skip
    generator = keras.Sequential([
        keras.Input((LATENT,)),
        layers.Dense(4 * 4 * 2, use_bias=False), layers.LayerNormalization(), layers.LeakyReLU(0.2),
        layers.Reshape((4, 4, 2)), layers.UpSampling2D(2), layers.Conv2D(1, 3, padding="same", activation="tanh"),
    ], name="generator")  # fmt: skip
    model = WGAN(critic, generator, random)
    model.compile(
        keras.optimizers.Adam(2e-4, beta_1=0.5), keras.optimizers.Adam(2e-4, beta_1=0.5),
        lambda real, made: ops.mean(made) - ops.mean(real), lambda made: -ops.mean(made),
    )
    return model, {"x": images}
