"""The time of a step of a marked function and of `run()` over the same step of `fit`: medians and ratios of one run.

    python benchmarks/loops.py [--steps 300] [--rounds 7] [--replicas 2]

All three train one small model on one batch, in turns. The bound is 1.0: they run the same session on the same graph.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from options import command, option

import autodist_core
from autodist_core import AutoDist, ResourceSpec
from autodist_keras import DistributedModel

X, Y = np.ones((8, 3), "float32"), np.zeros((8, 1), "float32")


def small() -> Any:
    """A model with one layer."""
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def of_fit(spec: ResourceSpec, steps: int) -> tuple[Callable[[], object], Callable[[], None]]:
    """`fit`, as many steps as are asked for."""
    model = DistributedModel(small(), spec, "PS", share_memory=False, fused_kernels=False)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    data = tf.data.Dataset.from_tensors((X, Y)).repeat(steps)
    return lambda: model.fit(data, verbose=0), model.close


def step_of(model: Any, optimizer: Any, size: float) -> Callable[[Any, Any], Any]:
    """One step written by hand; the loss is divided by `size`."""

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / size
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


def of_function(spec: ResourceSpec, steps: int) -> tuple[Callable[[], object], Callable[[], None]]:
    """A loop over a marked function."""
    front, model = AutoDist(spec, "PS", share_memory=False), small()
    step = front.function(step_of(model, keras.optimizers.SGD(0.01), 8.0))
    x, y = tf.constant(X), tf.constant(Y)
    return lambda: [step(x, y) for _ in range(steps)], front.close


def of_run(spec: ResourceSpec, steps: int) -> tuple[Callable[[], object], Callable[[], None]]:
    """A loop over `run()`, on values that are split already."""
    strategy = autodist_core.distribute(spec, "PS", share_memory=False)
    with strategy.scope():
        model = small()
        step = step_of(model, keras.optimizers.SGD(0.01), 8.0)
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors((X, Y)))
    batch = next(iter(data))
    return lambda: [strategy.run(step, args=batch) for _ in range(steps)], strategy.autodist.close


def main() -> None:
    """Print the medians of all rounds, and their ratios to `fit`."""
    parser = command(__doc__)
    option(parser, "--steps", "steps of each turn", 300, type=int)
    option(parser, "--rounds", "turns of each of the three", 7, type=int)
    option(parser, "--replicas", "the CPU devices of this machine, each a replica", 2, type=int)
    given = parser.parse_args()
    spec = ResourceSpec.local(cpus=given.replicas)
    made = {"fit": of_fit, "marked function": of_function, "run": of_run}
    loops = {name: make(spec, given.steps) for name, make in made.items()}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for run, _ in loops.values():
        run()  # captured, and built
    for _ in range(given.rounds):
        for name, (run, _) in loops.items():
            begun = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begun) / given.steps)
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, median in medians.items():
        print(f"{name:16} {1e3 * median:6.3f} ms/step  {median / medians['fit']:5.2f} x fit")
    for _, close in loops.values():
        close()


if __name__ == "__main__":
    main()
