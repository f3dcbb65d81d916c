"""Gradients that a function of run() adds up in variables and another one applies, as under TensorFlow's strategy."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.distributed import SUM, replicas

EXAMPLES, BATCH = 13, 5
"""Batches of 5, 5 and 3 examples, of which two replicas get different numbers."""
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1), "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}  # fmt: skip


class Accumulating:
    """A weight, the sum of its gradients and a momentum by hand, and the functions that work with them."""

    def __init__(self, strategy: Any, optimizer: str, reduced: bool = False, **kept: Any) -> None:
        with strategy.scope():
            self.weight = tf.Variable(np.linspace(-1.0, 1.0, 4)[:, None])
            self.total = tf.Variable(np.zeros((4, 1)), trainable=False, **kept)
            self.optimizer = OPTIMIZERS[optimizer]()
            self.optimizer.build([self.weight])
        self.strategy, self.reduced = strategy, reduced
        self.divided = reduced
        """Whether the sum is the same on all replicas when it is applied."""

    def add(self, x: Any) -> Any:
        """Add a replica's gradient, or the sum of the replicas' gradients."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ self.weight - 1.0) ** 2) / BATCH
        gradient = tape.gradient(loss, self.weight)
        if self.reduced:
            gradient = tf.distribute.get_replica_context().all_reduce(SUM, gradient)
        self.total.assign_add(gradient)
        return loss

    def apply(self) -> None:
        """Give the sum to the optimizer, which adds it up over the replicas."""
        times = self.strategy.num_replicas_in_sync if self.divided else 1
        self.optimizer.apply_gradients([(self.total.read_value() / times, self.weight)])
        self.total.assign(tf.zeros_like(self.total))

    def train(self, traced: bool = False) -> dict[str, Any]:
        """Two epochs; every second batch is followed by an update."""
        data = tf.data.Dataset.from_tensor_slices(np.random.default_rng(5).normal(size=(EXAMPLES, 4))).batch(BATCH)
        add = tf.function(lambda x: self.strategy.run(self.add, args=(x,)))
        apply = tf.function(lambda: self.strategy.run(self.apply))
        found, number = {}, 0
        for step in (self.add, lambda x: self.add(x)):  # the second one is traced anew
            for batch in self.strategy.experimental_distribute_dataset(data):
                losses = add(batch) if traced else self.strategy.run(step, args=(batch,))
                number += 1
                found[f"loss {number}"] = np.asarray(self.strategy.reduce(SUM, losses, axis=None))
                if number % 2 == 0:
                    apply() if traced else self.strategy.run(self.apply)
        variables = [self.weight, *self.optimizer.variables]
        return found | {f"{index}": value.numpy() for index, value in enumerate(variables)}


@pytest.mark.quick("momentum-False", "adam-True")
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_sum_of_gradients_that_is_applied_later_counts_as_under_tensorflow(mirrored, optimizer: str, reduced: bool):
    with replicas("PS", count=2) as strategy:
        made = Accumulating(strategy, optimizer, reduced)
        assert_same(Accumulating(mirrored, optimizer, reduced).train(), made.train(traced=optimizer == "momentum"))


@pytest.mark.parametrize("synchronization", [tf.VariableSynchronization.AUTO, tf.VariableSynchronization.ON_READ])
def test_gradients_in_a_variable_with_the_aggregation_sum_are_added_up_once(mirrored, synchronization: Any):
    kept = {"aggregation": tf.VariableAggregation.SUM, "synchronization": synchronization}

    def trained(strategy: Any) -> Any:
        made = Accumulating(strategy, "momentum", **kept)
        made.divided = synchronization == tf.VariableSynchronization.AUTO
        return made.train()

    with replicas("PS", count=2) as strategy:
        assert_same(trained(mirrored), trained(strategy))


def test_the_aggregation_mean_gives_the_same_updates(mirrored):
    with replicas("AllReduce", count=2) as strategy:
        mean = {"aggregation": tf.VariableAggregation.MEAN}
        assert_same(Accumulating(mirrored, "sgd", **mean).train(), Accumulating(strategy, "sgd", **mean).train())


def test_what_cannot_be_counted_says_what_to_do():
    with replicas(count=2) as strategy:
        made = Accumulating(strategy, "sgd", aggregation=tf.VariableAggregation.SUM)

        def assign(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x @ made.weight) ** 2)
            made.total.assign(made.total + tape.gradient(loss, made.weight))

        with pytest.raises(CaptureError, match="Make a variable for gradients without `aggregation`"):
            strategy.run(assign, args=(tf.ones([2, 4], tf.float64),))
    with replicas(count=2) as strategy:
        made = Accumulating(strategy, "sgd")
        strategy.run(made.apply)
        with pytest.raises(CaptureError, match=r"Call run\(\) with the function that writes the gradients first\."):
            strategy.run(made.add, args=(tf.ones([2, 4], tf.float64),))
    with replicas(count=2) as strategy:
        made = Accumulating(strategy, "sgd")
        strategy.run(made.add, args=(tf.ones([2, 4], tf.float64),))
        made.reduced = True
        strategy.run(lambda x: made.add(x), args=(tf.ones([2, 4], tf.float64),))
        with pytest.raises(CaptureError, match=r"Reduce the gradients before they are written"):
            strategy.run(made.apply)
