"""Batch normalization inside `run()`: each replica's own statistics, or the whole batch's."""

from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.distributed import BATCH, SUM, dataset, numbers, replicas, replicas_on
from tests.support.loops import SEED


class Training:
    """A network with batch normalization, trained as tf.distribute's users do: they divide by the global batch."""

    def __init__(self, strategy: Any, synchronized: bool) -> None:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(SEED)
        with strategy.scope():
            self.norm = keras.layers.BatchNormalization(momentum=0.5, synchronized=synchronized)
            self.model = keras.Sequential([
                keras.Input((5,)), keras.layers.Dense(7, use_bias=False), self.norm, keras.layers.Dense(3)
            ])
            self.optimizer = keras.optimizers.Adam(0.01)
        self.losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(self, inputs: Any) -> Any:
        """One replica's step."""
        return self.of_slices([inputs])

    def of_slices(self, slices: Any) -> Any:
        """A step in which each slice is normalized by its own statistics."""
        with tf.GradientTape() as tape:
            losses = [self.losses(y, self.model(x, training=True)) for x, y in slices]
            loss = tf.nn.compute_average_loss(tf.concat(losses, 0), global_batch_size=BATCH)
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def values(self, losses: list[Any]) -> dict[str, Any]:
        """The losses and all variables."""
        variables = [*self.model.variables, *self.optimizer.variables]
        return {"losses": np.stack(losses)} | {f"{i}": each.numpy() for i, each in enumerate(variables)}


def trained(strategy: Any, synchronized: bool, traced: bool = False) -> dict[str, Any]:
    """Two epochs."""
    training = Training(strategy, synchronized)

    def step(batch: Any) -> Any:
        return strategy.reduce(SUM, strategy.run(training.step, args=(batch,)), axis=None)

    called, batches = tf.function(step) if traced else step, strategy.experimental_distribute_dataset(dataset())
    return training.values([called(batch) for _ in range(2) for batch in batches])


@cache
def by_slices(count: int) -> dict[str, Any]:
    """The same on one device, with a batch in slices, and the mean of the slices' statistics by their examples."""
    training = Training(tf.distribute.get_strategy(), False)
    moving, losses = training.norm.non_trainable_variables, []
    for x, y in [batch for _ in range(2) for batch in dataset()]:
        slices = list(zip(np.array_split(x, count), np.array_split(y, count), strict=True))
        before, means = [variable.numpy() for variable in moving], [0.0, 0.0]
        for part, _ in slices:
            for variable, value in zip(moving, before, strict=True):
                variable.assign(value)
            training.model(part, training=True)
            means = [mean + each.numpy() * len(part) / len(x) for mean, each in zip(means, moving, strict=True)]
        losses.append(training.of_slices(slices))
        for variable, value in zip(moving, means, strict=True):
            variable.assign(value)
    return training.values(losses)


@pytest.mark.parametrize("strategy", ["PS", "AllReduce"])
def test_each_replica_normalizes_by_its_own_statistics(strategy: str):
    with replicas(strategy, count=3) as own:
        assert_same(trained(own, False, traced=strategy == "PS"), by_slices(3))


def test_synchronized_statistics_are_those_of_one_device():
    with replicas("Parallax", count=3) as strategy:
        assert_same(trained(strategy, True), trained(tf.distribute.get_strategy(), True))


@pytest.mark.parametrize("synchronized", [False, True])
def test_the_plan_says_that_a_replicas_own_statistics_are_not_exact(synchronized: bool):
    with replicas_on(dataset()) as (strategy, batch):
        plan = strategy.plan(Training(strategy, synchronized).step, args=(batch,))
    assert ("not exact: Mean" in plan) is not synchronized


def test_what_replicas_write_without_a_declaration_is_averaged_unless_it_counts():
    mean, total, rows, right = (tf.Variable(value) for value in (np.float64(0), np.float64(0), np.zeros(4), 0))
    with replicas_on(numbers(5)) as (strategy, batch):
        strategy.run(lambda x: mean.assign(0.5 * mean + 0.5 * tf.reduce_mean(x)), args=(batch,))
        assert abs(float(mean) - 1.5) < 1e-12
        refused = [
            lambda x: total.assign_add(tf.reduce_sum(x)),
            lambda x: total.assign(total + tf.reduce_sum(x)),
            lambda x: total.assign(tf.reduce_sum(x)),
            lambda x: right.assign_add(tf.reduce_sum(tf.cast(x > 2.0, tf.int32))),
            lambda x: rows.scatter_add(tf.IndexedSlices(x, tf.range(tf.shape(x)[0]))),
        ]
        for step in refused:
            with pytest.raises(CaptureError, match="on each replica, and it is not known"):
                strategy.run(step, args=(batch,))
        assert [float(total), int(right), *rows.numpy()] == [0.0] * 6
