"""Train a model that has more than 2 GiB in one variable: `python -m tests.support.large begin FOLDER`.

Each row of its table has other numbers from the beginning. Plain Keras trains a small model, whose table has only the
rows that the examples use. The large model must have its numbers in these rows, and the first numbers in all others.
Prints one line of JSON: the largest difference, divided by the largest entry of its tensor, and the most memory that
the program had, in GB.

- `begin`, `resume`, `load`: a `fit` with `Resume` on two replicas is ended in its second epoch; it goes on with a
  `ModelCheckpoint`; plain Keras loads the weights of that.
- `hosts`: trains over the cluster whose spec comes from stdin. The table is on one host, and then in shards on both.
"""

import gc
import json
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from autodist_keras.callbacks import Resume
from tests.support.models import stacked

WIDTH = 64
ROWS = 2**31 // (WIDTH * 8) + 1000
EXAMPLES, BATCH = 24, 8
STEPS, SAVED = 6, 2
"""The steps of two epochs, and after how many of them the state is saved that is taken up."""
TWO = ResourceSpec.local(cpus=2)

Weights = list[np.ndarray]


def rising(shape: Any, dtype: Any = None) -> Any:
    """Numbers of which no two are the same."""
    return keras.ops.reshape(keras.ops.arange(np.prod(shape), dtype=dtype) * 1e-9, shape)


def data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Four rows of the table for each example, some of them at its ends, and a target."""
    x = np.random.default_rng(3).integers(0, rows, size=(EXAMPLES, 4))
    x[:, 0], x[:, 1] = np.arange(EXAMPLES) % 3, rows - 1 - np.arange(EXAMPLES) % 5
    return x, np.linspace(-1.0, 1.0, EXAMPLES).reshape(-1, 1)


def embedding(rows: int = ROWS) -> keras.Model:
    """A table, and a layer that weighs what it gives."""
    return stacked(
        keras.Input((4,), dtype="int64"), keras.layers.Embedding(rows, WIDTH, embeddings_initializer=rising),
        keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer=rising), optimizer=keras.optimizers.SGD(0.1),
    )


def fit(front: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> np.ndarray:
    """The losses of two epochs."""
    settings = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    return np.array(front.fit(x, y, **{**settings, **options}).history["loss"])


def expected() -> Weights:
    """What plain Keras makes of the rows that the examples use, of the other weights, and of the losses."""
    x, y = data()
    used, renumbered = np.unique(x, return_inverse=True)
    model = embedding(len(used))
    model.weights[0].assign(numbers(used))
    losses = fit(model, renumbered.reshape(x.shape), y)
    return [*(weight.numpy() for weight in model.weights), losses]


def numbers(rows: np.ndarray) -> np.ndarray:
    """What some rows of the table have at first."""
    return (rows[:, None] * WIDTH + np.arange(WIDTH)) * 1e-9


def found(model: keras.Model, losses: np.ndarray) -> Weights:
    """The same of the large model, whose other rows must be what they were at first."""
    table, used = model.weights[0].numpy(), np.unique(data()[0])
    for start in range(0, ROWS, 1 << 18):
        rows = np.arange(start, min(start + (1 << 18), ROWS))
        changed = rows[np.any(table[rows[0] : rows[-1] + 1] != numbers(rows), axis=1)]
        assert set(changed) <= set(used), f"rows of no example have changed: {changed[:9]}"
    return [table[used], *(weight.numpy() for weight in model.weights[1:]), losses]


def largest(one: Weights, other: Weights) -> float:
    """The largest difference, divided by the largest entry of its tensor."""
    pairs = zip(one, other, strict=True)
    return max(float(np.max(np.abs(first - second)) / np.max(np.abs(first))) for first, second in pairs)


class Ended(Exception):
    """Ends a training, as a signal would."""


def end(epoch: int, logs: Any) -> None:
    """End the training in its second epoch."""
    if epoch == 1:
        raise Ended


def begin(folder: Path) -> float:
    """Train until the second epoch, with `Resume`."""
    with DistributedModel(embedding(), TWO) as dm, suppress(Ended):
        ending = keras.callbacks.LambdaCallback(on_epoch_begin=end)
        fit(dm, *data(), callbacks=[Resume(folder / "states", every=SAVED, keep=1), ending])
    return 0.0


def resume(folder: Path) -> float:
    """Go on, and write a checkpoint."""
    begun: list[int] = []
    callbacks = [
        Resume(folder / "states", every=STEPS, keep=1),
        keras.callbacks.ModelCheckpoint(folder / "last.weights.h5", save_weights_only=True),
        keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: begun.append(batch)),
    ]
    with DistributedModel(embedding(), TWO) as dm:
        losses = fit(dm, *data(), callbacks=callbacks)
        assert len(begun) == STEPS - SAVED, "it was to go on where it was"
        return largest(expected(), found(dm.model, losses))


def load(folder: Path) -> float:
    """Load the checkpoint with plain Keras."""
    model, wanted = embedding(), expected()
    model.load_weights(folder / "last.weights.h5")
    return largest(wanted, found(model, wanted[-1]))


def hosts(folder: Path) -> float:
    """The difference with the table on one host, and in shards on both."""
    spec, differences = json.loads(sys.stdin.readline()), []
    for strategy in ("PS", "PartitionedPS"):
        with DistributedModel(embedding(), spec, strategy) as dm:
            losses = fit(dm, *data())
            differences.append(largest(expected(), found(dm.model, losses)))
        gc.collect()
    return max(differences)


CASES: dict[str, Callable[[Path], float]] = {case.__name__: case for case in (begin, resume, load, hosts)}


def main() -> None:
    """Do what the arguments say."""
    keras.config.set_floatx("float64")
    difference = CASES[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps({"difference": difference, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}))


if __name__ == "__main__":
    main()
