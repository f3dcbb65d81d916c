"""Write training loops from scratch, run them over local replicas with AutoDist, and compare with one device.

    python examples/training_loop.py [--replicas 2] [--strategy PS] [--epochs 3]

The loops are those of Keras's guide "Writing a training loop from scratch": a classifier with metrics and an evaluation
after each epoch, and a generator that is trained against a discriminator (a GAN). The program makes its data itself. It
computes in float64, and exits with 1 if the numbers differ from those of one device.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import numpy as np
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec

ALLOWED = 1e-12  # the largest difference, as a fraction of the tensor's largest entry
CLASSES, SIZE, LATENT = 5, 8, 6
BATCH = 32

Mark = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What marks a function: `AutoDist.function`, or `tf.function` for one device."""
Numbers = dict[str, np.ndarray]


def make_data(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images of random patterns, and the number of the pattern of each image."""
    patterns = np.random.default_rng(0).normal(size=(CLASSES, SIZE, SIZE, 1))
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=examples)
    return patterns[labels] + rng.normal(size=(examples, SIZE, SIZE, 1)), labels


def values(*variables: Any) -> Numbers:
    """Return the values of variables by their paths."""
    return {each.path: each.numpy() for each in variables}


def train_classifier(mark: Mark, epochs: int, examples: int = 600) -> Numbers:
    """Train a classifier, print its metrics after each epoch, and return all numbers by name."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu", activity_regularizer=keras.regularizers.L2(1e-2)),
            keras.layers.Dense(CLASSES),
        ],
        name="classifier",
    )
    optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    validation_accuracy = keras.metrics.SparseCategoricalAccuracy(name="validation accuracy")
    dataset = tf.data.Dataset.from_tensor_slices(make_data(examples, 1)).shuffle(examples, seed=3).batch(BATCH)
    validation = tf.data.Dataset.from_tensor_slices(make_data(examples // 4, 2)).batch(BATCH)

    @mark
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_of(labels, logits) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        train_accuracy.update_state(labels, logits)
        return loss

    @mark
    def test_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        validation_accuracy.update_state(labels, model(images, training=False))

    numbers: Numbers = {}
    for epoch in range(epochs):
        losses = [float(train_step(images, labels)) for images, labels in dataset]
        for images, labels in validation:
            test_step(images, labels)
        print(f"classifier, epoch {epoch}: loss {losses[-1]:.6f}", end="")
        numbers[f"losses of epoch {epoch}"] = np.array(losses)
        for metric in (train_accuracy, validation_accuracy):
            numbers[f"{metric.name} of epoch {epoch}"] = np.array(metric.result())
            print(f", {metric.name} {metric.result():.6f}", end="")
            metric.reset_state()
        print()
    return numbers | values(*model.variables, *optimizer.variables)


def make_gan() -> tuple[keras.Model, keras.Model]:
    """Return a discriminator and a generator."""
    keras.utils.set_random_seed(2)
    discriminator = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            keras.layers.Conv2D(8, 3, strides=2, padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ],
        name="discriminator",
    )
    generator = keras.Sequential(
        [
            keras.Input((LATENT,)),
            keras.layers.Dense(4 * 4 * 8),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Reshape((4, 4, 8)),
            keras.layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
            keras.layers.LeakyReLU(negative_slope=0.2),
            keras.layers.Conv2D(1, 3, padding="same"),
        ],
        name="generator",
    )
    return discriminator, generator


def train_gan(mark: Mark, epochs: int, examples: int = 200) -> Numbers:
    """Train a generator against a discriminator, print their losses, and return all numbers by name."""
    discriminator, generator = make_gan()
    of_discriminator, of_generator = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    images, _ = make_data(examples, 4)
    # Latent vectors are arguments: numbers that a function draws itself are each replica's own.
    rng = np.random.default_rng(5)

    @mark
    def train_step(real: tf.Tensor, latent: tf.Tensor, other_latent: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        fake = generator(latent)
        with tf.GradientTape() as tape:
            scores = discriminator(tf.concat([fake, real], axis=0))
            labels = tf.concat([tf.ones_like(fake[:, 0, 0]), tf.zeros_like(real[:, 0, 0])], axis=0)
            loss = loss_of(labels, scores)
        gradients = tape.gradient(loss, discriminator.trainable_weights)
        of_discriminator.apply(gradients, discriminator.trainable_weights)

        with tf.GradientTape() as tape:
            scores = discriminator(generator(other_latent))
            fooled = loss_of(tf.zeros_like(scores), scores)
        gradients = tape.gradient(fooled, generator.trainable_weights)
        of_generator.apply(gradients, generator.trainable_weights)
        return loss, fooled

    numbers: Numbers = {}
    for epoch in range(epochs):
        losses = []
        for start in range(0, examples, BATCH):
            real = images[start : start + BATCH]
            latent, other_latent = rng.normal(size=(2, len(real), LATENT))
            losses.append([float(loss) for loss in train_step(real, latent, other_latent)])
        numbers[f"losses of the GAN in epoch {epoch}"] = np.array(losses)
        print(f"GAN, epoch {epoch}: discriminator {losses[-1][0]:.6f}, generator {losses[-1][1]:.6f}")
    return numbers | values(*discriminator.variables, *generator.variables)


def largest_difference(ours: Numbers, reference: Numbers) -> tuple[float, str]:
    """Return the largest difference, as a fraction of the tensor's largest entry, and the name of the tensor."""
    differences = []
    for (name, a), b in zip(ours.items(), reference.values(), strict=True):
        difference, largest = float(np.max(np.abs(a - b))), float(np.max(np.abs(b)))
        # A number that is none, as after a division by zero, is the largest difference of all.
        differences.append((math.inf if math.isnan(difference) else difference and difference / largest, name))
    return max(differences)


def main() -> int:
    """Run the loops on the replicas and on one device, compare all numbers, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2, help="replicas on this machine's CPU (default: 2)")
    parser.add_argument("--strategy", default="PS", help="the name of a strategy (default: PS)")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    keras.config.set_floatx("float64")
    print(f"{args.replicas} replicas:")
    with AutoDist(ResourceSpec.local(cpus=args.replicas), args.strategy) as autodist:
        ours = train_classifier(autodist.function, args.epochs) | train_gan(autodist.function, args.epochs)
    print("one device:")
    reference = train_classifier(tf.function, args.epochs) | train_gan(tf.function, args.epochs)
    difference, name = largest_difference(ours, reference)
    print(f"The largest difference is {difference:.1e} of the largest entry ({name}); {ALLOWED:.0e} is allowed.")
    return 0 if difference <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
