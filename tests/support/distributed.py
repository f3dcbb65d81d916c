"""Strategies with tf.distribute's methods on replicas of this process, and a loop that is written for them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import autodist_core
from autodist_core import ResourceSpec
from tests.support.loops import SEED
from tests.support.strategies import strategy_named

BATCH, EXAMPLES = 8, 29
"""Batches of 8, 8, 8 and 5 examples: no three replicas have slices of one size."""
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def replicas(strategy: Any = "PS", count: int = 3, **settings: Any) -> AbstractContextManager[Any]:
    """A strategy on so many logical CPUs, each with a memory of its own."""
    return over(ResourceSpec.local(cpus=count), strategy, **{"share_memory": False, **settings})


@contextmanager
def over(spec: Any, strategy: Any = "PS", **settings: Any) -> Iterator[Any]:
    """A strategy over these nodes, which is closed at the end."""
    made = autodist_core.distribute(spec, strategy_named(strategy), **settings)
    try:
        yield made
    finally:
        made.autodist.close()


@contextmanager
def replicas_on(data: tf.data.Dataset, strategy: Any = "PS", count: int = 2) -> Iterator[tuple[Any, Any]]:
    """A strategy on so many logical CPUs, and the first batch of a dataset as its replicas get it."""
    with replicas(strategy, count) as made:
        yield made, next(iter(made.experimental_distribute_dataset(data)))


def dataset() -> tf.data.Dataset:
    """Examples with five features and one of three classes."""
    random = np.random.default_rng(3)
    x, y = random.normal(size=(EXAMPLES, 5)), random.integers(0, 3, size=EXAMPLES)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def by_hand(variables: list[Any], gradients: list[Any]) -> None:
    """Gradient descent without an optimizer."""
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)


def numbers(count: int, batch: int = 0) -> tf.data.Dataset:
    """The numbers from 1 on, in one batch or in several."""
    return tf.data.Dataset.from_tensor_slices(np.arange(1.0, count + 1)).batch(batch or count)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "AdagradV1": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "by hand": lambda: None,
}


def epochs(strategy: Any, optimizer: str, traced: bool) -> dict[str, Any]:
    """Two epochs of a classifier whose replicas divide by the global batch, as tf.distribute's users do."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])
        made, accuracy = OPTIMIZERS[optimizer](), keras.metrics.SparseCategoricalAccuracy()
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(inputs: Any) -> Any:
        x, y = inputs
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = tf.nn.compute_average_loss(losses(y, predicted), global_batch_size=BATCH)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if made is None:
            by_hand(variables, gradients)
        elif isinstance(made, keras.optimizers.Optimizer):
            made.apply_gradients(zip(gradients, variables, strict=True))
        else:
            made.apply_gradients(zip(gradients, [variable.value for variable in variables], strict=True))
        accuracy.update_state(y, predicted)
        return loss

    def epoch(batches: Any) -> Any:
        total = tf.constant(0.0, tf.float64)
        for batch in batches:
            total += strategy.reduce(SUM, strategy.run(step, args=(batch,)), axis=None)
        return total

    run = tf.function(epoch) if traced else epoch
    found: dict[str, Any] = {}
    for number in range(2):
        found[f"loss {number}"] = np.asarray(run(strategy.experimental_distribute_dataset(dataset())))
        found[f"accuracy {number}"] = accuracy.result().numpy()
        accuracy.reset_state()
    variables = model.variables + (made.variables if isinstance(made, keras.optimizers.Optimizer) else [])
    return found | {f"{index} {variable.path}": variable.numpy() for index, variable in enumerate(variables)}
