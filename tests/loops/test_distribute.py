"""Loops with tf.distribute's methods: on replicas against TensorFlow's own strategy of one device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_same
from tests.support.distributed import BATCH, MEAN, OPTIMIZERS, SUM, dataset, epochs, replicas
from tests.support.strategies import BUILDERS


@pytest.fixture(scope="module")
def alone() -> Callable[[str], dict[str, Any]]:
    """The loop on one device, by optimizer."""
    known: dict[str, dict[str, Any]] = {}

    def found(optimizer: str) -> dict[str, Any]:
        if optimizer not in known:
            # The default strategy: TensorFlow's own of one device takes no optimizer of compat.v1 in eager mode.
            known[optimizer] = epochs(tf.distribute.get_strategy(), optimizer, False)
        return known[optimizer]

    return found


@pytest.mark.quick("traced-SGD")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_an_epoch_equals_one_device(alone, optimizer: str, traced: bool):
    with replicas("PS") as strategy:
        assert_same(epochs(strategy, optimizer, traced), alone(optimizer))


@pytest.mark.quick("PartitionedPS")
@pytest.mark.parametrize("name", BUILDERS)
def test_every_exact_strategy(alone, name: str):
    with replicas(name, count=2) as strategy:
        assert_same(epochs(strategy, "SGD", True), alone("SGD"))


def regularized(strategy: Any) -> dict[str, Any]:
    """TensorFlow's guide with a penalty, in which the last batch has fewer examples than there are replicas."""
    weight = tf.Variable(np.linspace(-1.0, 1.0, 5), name="weight")

    def step(x: Any) -> Any:
        total = tf.distribute.get_replica_context().all_reduce(SUM, tf.reduce_sum(weight) + 1.0)
        with tf.GradientTape() as tape:
            penalties = [0.1 * tf.reduce_sum(weight**2), 0.01 * tf.reduce_sum(tf.abs(weight))]
            loss = tf.nn.compute_average_loss(tf.linalg.matvec(x, weight) ** 2, global_batch_size=BATCH)
            loss += tf.nn.scale_regularization_loss(tf.add_n(penalties))
        gradient = tape.gradient(loss, weight)
        norm = tf.norm(tf.distribute.get_replica_context().all_reduce(SUM, gradient))
        weight.assign_sub(0.1 * gradient)
        return (loss, gradient), norm, tf.reduce_sum(weight), total / strategy.num_replicas_in_sync

    found = []
    features = dataset().unbatch().take(BATCH + 2).map(lambda x, y: x).batch(BATCH)
    for batch in strategy.experimental_distribute_dataset(features):
        parts, *alike = strategy.run(step, args=(batch,))
        found += [*strategy.reduce(SUM, parts, None), *(strategy.reduce(MEAN, value, None) for value in alike)]
    return {"found": np.concatenate([np.ravel(each) for each in found]), "weight": weight.numpy()}


@pytest.mark.parametrize("name", ["PS", "AllReduce"])
def test_replicas_without_examples_count_what_is_the_same_on_all(name: str):
    with replicas(name, count=3) as strategy:
        assert_same(regularized(tf.distribute.get_strategy()), regularized(strategy))
