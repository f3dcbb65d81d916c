"""Keras's optimizers in a function of run() that put their update into a conditional, on one device and on replicas."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.distributed import SUM, replicas

EXAMPLES, BATCH = 17, 5
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "accumulating": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2, clipnorm=0.3),
    "scaling": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.05, gradient_accumulation_steps=2), 4.0, 2
    ),
}


def train(strategy: Any, name: str, reduced: bool = False) -> dict[str, Any]:
    """Four batches, of which the second has gradients that are not finite."""
    random = np.random.default_rng(5)
    with strategy.scope():
        table = tf.Variable(random.normal(size=(7, 3)), name="table")
        weight = tf.Variable(np.ones((3, 2)), name="weight")
        optimizer = OPTIMIZERS[name]()
        optimizer.build([table, weight])

    def step(rows: Any, factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.gather(table, rows) @ weight * factor[:, tf.newaxis] - 1.0) ** 2) / BATCH
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [table, weight])
        if reduced:
            gradients = tf.distribute.get_replica_context().all_reduce(SUM, gradients)
        optimizer.apply_gradients(zip(gradients, [table, weight], strict=True))
        return loss

    factors = np.ones(EXAMPLES)
    if name != "accumulating":
        factors[BATCH] = np.inf
    data = tf.data.Dataset.from_tensor_slices((random.integers(0, 7, EXAMPLES), factors)).batch(BATCH)
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, args=batch)
    return {str(at): np.asarray(each) for at, each in enumerate([table, weight, *optimizer.variables])}


@pytest.mark.parametrize(("name", "strategy"), [("accumulating", "PS"), ("scaling", "AllReduce")])
def test_an_update_in_a_conditional_equals_one_device(name: str, strategy: str):
    with replicas(strategy) as front:
        assert_same(train(tf.distribute.get_strategy(), name), train(front, name))


def test_sums_for_an_update_in_a_conditional_are_refused():
    words = r"made of a sum.*gradient_accumulation_steps or"
    with replicas(count=2) as front, pytest.raises(CaptureError, match=words):
        train(front, "accumulating", reduced=True)
