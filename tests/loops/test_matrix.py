"""A loop of one's own gives the numbers of one device: every builder, with every way to update, in turns."""

import os
from dataclasses import dataclass
from itertools import product
from typing import Any

import keras
import numpy as np
import pytest

from tests.support.loop_optimizers import WAYS
from tests.support.loop_steps import STEPS
from tests.support.loops import BATCHES, assert_equal_loops, batches, values
from tests.support.strategies import BUILDERS


def dense() -> keras.Model:
    return keras.Sequential([
        keras.Input((5,)), keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(3),
    ])  # fmt: skip


def embedding() -> keras.Model:
    return keras.Sequential([
        keras.Input((4,), dtype="int64"), keras.layers.Embedding(11, 3), keras.layers.Flatten(), keras.layers.Dense(3),
    ])  # fmt: skip


def data(model: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    examples = sum(BATCHES)
    x = random.normal(size=(examples, 5)) if model == "dense" else random.integers(0, 11, (examples, 4))
    return x, random.integers(0, 3, examples)


@dataclass(frozen=True)
class Trains:
    """Batches of several sizes, with metrics, and all that is left behind."""

    model: str
    way: str

    def __call__(self, front: Any) -> Any:
        model, update = {"dense": dense, "embedding": embedding}[self.model](), WAYS[self.way]()
        of_batch = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

        @front.function
        def train_step(x, y):
            loss = update(lambda: of_batch(y, model(x, training=True)), model.trainable_variables)
            mean.update_state(loss)
            predicted = model(x)
            accuracy.update_state(y, predicted)
            return loss, predicted

        seen = [[value.numpy() for value in train_step(x, y)] for x, y in batches(*data(self.model))]
        return {
            "seen": seen, "metrics": [mean.result(), accuracy.result()],
            "weights": values(model.weights), "optimizer": values(update.variables),
        }


def combinations() -> list[tuple[str, str, str, int]]:
    if os.environ.get("AUTODIST_FULL_MATRIX") == "1":
        return list(product(["dense", "embedding"], WAYS, BUILDERS, [2, 3]))
    return [
        (model, way, strategy, 2 + (place // 2 + turn) % 2)
        for row, model in enumerate(["dense", "embedding"]) for turn, way in enumerate(WAYS)
        for place, strategy in enumerate(BUILDERS) if (place + turn + row) % 2 == 0
    ]  # fmt: skip


@pytest.mark.quick(
    "dense-momentum-AllReduce-2", "dense-adam-PS-3", "dense-v1_adam-Parallax-2",
    "dense-by_hand-PartitionedAR-3", "embedding-adam-PSLoadBalancing-2", "embedding-clipped-UnevenPartitionedPS-2",
    "embedding-tf_keras_adam-PS-2", "embedding-v1_momentum-RandomAxisPartitionAR-3",
    "embedding-v1_sgd-AllReduce-3",
)  # fmt: skip
@pytest.mark.parametrize("model, way, strategy, replicas", combinations())
def test_a_loop_equals_one_device(model: str, way: str, strategy: str, replicas: int):
    assert_equal_loops(Trains(model, way), strategy, replicas)


@pytest.mark.quick("embedding-adam-PS")
@pytest.mark.parametrize("model, way, strategy", [
    ("embedding", "adam", "PS"), ("dense", "v1_momentum", "AllReduce"), ("dense", "by_hand", "Parallax"),
])  # fmt: skip
def test_replicas_that_share_their_memory_equal_one_device(model: str, way: str, strategy: str):
    assert_equal_loops(Trains(model, way), strategy, share_memory=True)


STRATEGIES = ["PS", "AllReduce", "PartitionedPS"]


@pytest.mark.quick(
    "clipped_by_norm-PartitionedPS", "sum_by_global_size-AllReduce", "cond_on_a_variable-AllReduce",
    "while_in_the_forward_pass-PS", "sharpness_aware-PartitionedPS", "applied_three_times-PS",
    "against_the_signs_of_the_examples-PartitionedPS", "gradients_of_two_losses-PS",
)  # fmt: skip
@pytest.mark.parametrize(("step", "strategy"), [(step, STRATEGIES[turn % 3]) for turn, step in enumerate(STEPS)])
def test_a_step_equals_one_device(step: str, strategy: str):
    assert_equal_loops(STEPS[step], strategy)
