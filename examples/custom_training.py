"""Train with a loop of tf.distribute's methods over local replicas, and compare every number with one device.

    python examples/custom_training.py [--replicas 2] [--strategy Parallax] [--epochs 3]

The structure is that of TensorFlow's guide "Custom training with tf.distribute.Strategy": a replica's loss is its part
of the global one, an epoch is one `tf.function`, and metrics and checkpoints are made beside it. Only the strategy is
made otherwise. The program makes its data itself. It computes in float64, and exits with 1 if the numbers differ.
"""

import argparse
import math
import os
import sys
import tempfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import numpy as np
import tensorflow as tf

import autodist_core
from autodist_core import ResourceSpec

ALLOWED = 1e-12  # the largest difference, as a fraction of the tensor's largest entry
CLASSES, SIZE = 10, 12
GLOBAL_BATCH = 64


def make_data(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images of ten random patterns, and the number of the pattern of each image."""
    patterns = np.random.default_rng(0).normal(size=(CLASSES, SIZE, SIZE, 1))
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=examples)
    return patterns[labels] + rng.normal(size=(examples, SIZE, SIZE, 1)), labels


def make_model() -> keras.Model:
    """Return the network. Every call returns the same initial weights."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            keras.layers.Conv2D(8, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def train(strategy: tf.distribute.Strategy, epochs: int, examples: int = 1000) -> dict[str, np.ndarray]:
    """Train with a strategy, print a line for each epoch, and return all numbers by name."""
    train_batches = tf.data.Dataset.from_tensor_slices(make_data(examples, 1)).batch(GLOBAL_BATCH)
    test_batches = tf.data.Dataset.from_tensor_slices(make_data(examples // 4, 2)).batch(GLOBAL_BATCH)
    train_data = strategy.experimental_distribute_dataset(train_batches)
    test_data = strategy.experimental_distribute_dataset(test_batches)

    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.Adam()
        losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        test_loss = keras.metrics.Mean(name="test_loss")
        train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        test_accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    def train_step(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # The last batch of an epoch has fewer examples. Each of them counts as much as any other.
            loss = tf.nn.compute_average_loss(losses_of(labels, logits), global_batch_size=GLOBAL_BATCH)
            # The penalty is the same on every replica, and gradients are added up: it is divided by the replicas.
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(labels, logits)
        return loss

    def test_step(inputs: tuple[tf.Tensor, tf.Tensor]) -> None:
        images, labels = inputs
        logits = model(images, training=False)
        test_loss.update_state(losses_of(labels, logits))
        test_accuracy.update_state(labels, logits)

    @tf.function  # type: ignore[untyped-decorator]
    def train_epoch(dataset: tf.distribute.DistributedDataset) -> tf.Tensor:
        total, batches = tf.constant(0.0, keras.config.floatx()), 0
        for inputs in dataset:
            losses = strategy.run(train_step, args=(inputs,))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
            batches += 1
        return total / tf.cast(batches, total.dtype)

    @tf.function  # type: ignore[untyped-decorator]
    def test_epoch(dataset: tf.distribute.DistributedDataset) -> None:
        for inputs in dataset:
            strategy.run(test_step, args=(inputs,))

    numbers: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(epochs):
            loss = train_epoch(train_data)
            test_epoch(test_data)
            path = checkpoint.save(os.path.join(folder, "checkpoint"))
            metrics = {each.name: each.result() for each in (train_accuracy, test_loss, test_accuracy)}
            print(f"epoch {epoch}: loss {loss:.6f}, " + ", ".join(f"{k} {v:.6f}" for k, v in metrics.items()))
            numbers |= {f"{name} of epoch {epoch}": np.array(each) for name, each in {"loss": loss, **metrics}.items()}
            for metric in (train_accuracy, test_loss, test_accuracy):
                metric.reset_state()

        # The last checkpoint, in a new model and without a strategy.
        again = make_model()
        tf.train.Checkpoint(model=again).restore(path).expect_partial()
        for images, labels in test_batches:
            test_accuracy.update_state(labels, again(images, training=False))
    numbers["test_accuracy of the checkpoint"] = np.array(test_accuracy.result())
    return numbers | {each.path: each.numpy() for each in (*model.variables, *optimizer.variables)}


def largest_difference(ours: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return the largest difference, as a fraction of the tensor's largest entry, and the name of the tensor."""
    differences = []
    for (name, a), b in zip(ours.items(), reference.values(), strict=True):
        difference, largest = float(np.max(np.abs(a - b))), float(np.max(np.abs(b)))
        # A number that is none, as after a division by zero, is the largest difference of all.
        differences.append((math.inf if math.isnan(difference) else difference and difference / largest, name))
    return max(differences)


def main() -> int:
    """Train on the replicas and on one device, compare all numbers, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2, help="replicas on this machine's CPU (default: 2)")
    parser.add_argument("--strategy", default="Parallax", help="the name of a strategy (default: Parallax)")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    keras.config.set_floatx("float64")
    print(f"{args.replicas} replicas:")
    strategy = autodist_core.distribute(ResourceSpec.local(cpus=args.replicas), args.strategy)
    ours = train(strategy, args.epochs)
    strategy.autodist.close()
    print("one device:")  # TensorFlow's own strategy, outside of any scope
    difference, name = largest_difference(ours, train(tf.distribute.get_strategy(), args.epochs))
    print(f"The largest difference is {difference:.1e} of the largest entry ({name}); {ALLOWED:.0e} is allowed.")
    return 0 if difference <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
