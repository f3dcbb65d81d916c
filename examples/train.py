"""Train a small convolutional network on two local replicas, and compare its weights with training on one device.

    python examples/train.py [--replicas 2] [--strategy AllReduce] [--epochs 2]

The program makes its data itself and downloads nothing. It computes in float64, where the weights of both trainings
differ by rounding errors only. The program exits with 1 if they differ by more.
"""

import argparse
import math
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel

ALLOWED = 1e-12  # the largest difference, as a fraction of the tensor's largest entry
CLASSES = 10


def make_data(examples: int = 2000, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images of ten random patterns, and the number of the pattern of each image."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(CLASSES, size, size, 1))
    labels = rng.integers(CLASSES, size=examples)
    return patterns[labels] + rng.normal(scale=2.0, size=(examples, size, size, 1)), labels


def make_model(size: int = 16) -> keras.Model:
    """Return the network. Every call returns the same initial weights."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((size, size, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def largest_difference(ours: keras.Model, reference: keras.Model) -> tuple[float, str]:
    """Return the largest difference of two models' weights, and the path of the tensor that has it.

    The difference is a fraction of the tensor's largest entry.
    """
    differences = []
    for a, b in zip(ours.weights, reference.weights, strict=True):
        difference = float(np.max(np.abs(a.numpy() - b.numpy())) / np.max(np.abs(b.numpy())))
        differences.append((math.inf if math.isnan(difference) else difference, a.path))
    return max(differences)


def main() -> int:
    """Train on the replicas and on one device, compare the weights, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2, help="replicas on this machine's CPU (default: 2)")
    parser.add_argument("--strategy", default="AllReduce", help="the name of a strategy (default: AllReduce)")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    keras.config.set_floatx("float64")
    x, y = make_data()
    compiled = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    # 1800 examples are trained in batches of 64, so the last batch of an epoch has 8 examples. The examples are in
    # random order already. Without shuffling, both trainings have the same batches.
    fitted = {"batch_size": 64, "epochs": args.epochs, "validation_split": 0.1, "shuffle": False}

    model = make_model()
    with DistributedModel(model, ResourceSpec.local(cpus=args.replicas), strategy=args.strategy) as dm:
        dm.compile(**compiled)
        print(dm.plan(), end="\n\n")
        dm.fit(x, y, **fitted)

    reference = make_model()
    reference.compile(**compiled, jit_compile=False)
    reference.fit(x, y, **fitted, verbose=0)

    difference, name = largest_difference(model, reference)
    equal = difference <= ALLOWED
    print(
        f"\n{args.replicas} replicas {'equal' if equal else 'DIFFER FROM'} one device: the largest difference in "
        f"{len(model.weights)} tensors is {difference:.1e} of the largest entry ({name}), and {ALLOWED:.0e} is allowed."
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
