"""Train small models in the manner of keras.io's examples on local replicas, and compare them with one device.

    python examples/gallery                 # lists the models
    python examples/gallery vit             # one of them, or several, or `all`
    python examples/gallery vit --replicas 3 --strategy PS

Each file here has a function `build`, which returns a compiled model and the arguments of `fit`. The models make their
data themselves. They compute in float64, where a difference is rounding if it is below 1e-12 of a tensor's largest
entry. The program prints the plan's notes on what is not one device's, and the largest difference.
"""

import argparse
import ast
import importlib
import math
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

import keras
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
FITTED = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
"""Without shuffling, both trainings have the same batches. The last batch of an epoch is smaller than the others."""


def what(name: str) -> str:
    """Return the first sentence of a model's docstring."""
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].replace("\n", " ")


def built(name: str) -> tuple[keras.Model, dict[str, Any]]:
    """Return a model with the same initial weights and the same names each time, and the arguments of its `fit`."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    model, data = importlib.import_module(name).build()
    return model, {**FITTED, **data}


def numbers(model: keras.Model, history: keras.callbacks.History) -> dict[str, np.ndarray]:
    """Return what a training leaves behind: the weights, and the logged losses and metrics."""
    weights = {f"{index} {each.path}": each.numpy() for index, each in enumerate(model.weights)}
    return weights | {f"logged {name}": np.array(values) for name, values in history.history.items()}


def largest_difference(ours: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return the largest difference as a fraction of a tensor's largest entry, and the name of that tensor."""
    found = [(0.0, "none")]
    for name, value in reference.items():
        if value.dtype.kind == "f" and not np.array_equal(ours[name], value):
            difference = float(np.max(np.abs(ours[name] - value)) / np.max(np.abs(value)))
            # A number that is none, as after a division by zero, is the largest difference of all.
            found.append((math.inf if math.isnan(difference) else difference, name))
    return max(found)


def run(name: str, strategy: str, replicas: int) -> None:
    """Train a model on one device and on replicas, and print the plan's notes and the largest difference."""
    print(f"{name}: {what(name)}")
    model, data = built(name)
    reference = numbers(model, model.fit(**data))
    model, data = built(name)
    with DistributedModel(model, ResourceSpec.local(cpus=replicas), strategy=strategy) as dm:
        first = {key: value for key, value in data.items() if key in ("x", "y", "sample_weight")}
        for line in str(dm.plan(**first)).splitlines():
            if line.lstrip().startswith("note: "):
                print(f"  {line.strip()}")
        ours = numbers(model, dm.fit(**data))
    difference, where = largest_difference(ours, reference)
    print(f"  {replicas} replicas and one device: the largest difference is {difference:.1e} ({where})\n", flush=True)


def main() -> int:
    """Run the models that the command line names."""
    parser = argparse.ArgumentParser(prog="python examples/gallery", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], "all", *NAMES], metavar="name")
    parser.add_argument("--strategy", default="Parallax", help="the name of a strategy (default: Parallax)")
    parser.add_argument("--replicas", type=int, default=2, help="replicas on this machine's CPU (default: 2)")
    args = parser.parse_args()
    if not args.names:
        print("\n".join(f"{name:28} {what(name)}" for name in NAMES))
    keras.config.set_floatx("float64")
    for name in NAMES if "all" in args.names else args.names:
        run(name, args.strategy, args.replicas)
    return 0


if __name__ == "__main__":
    sys.exit(main())
