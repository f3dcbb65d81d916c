"""Gradients that a function of run() returns, reduces, adds up and applies, as under TensorFlow's strategy."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.distributed import MEAN, SUM, replicas

EXAMPLES, BATCH = 13, 5
"""Batches of 5, 5 and 3 examples, of which two replicas get different numbers."""


class Tools:
    """What a step works with."""

    def __init__(self, strategy: Any) -> None:
        only_first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        with strategy.scope():
            self.weight = tf.Variable(np.linspace(-1.0, 1.0, 4)[:, None])
            self.count = tf.Variable(0.0, dtype=tf.float64, trainable=False, aggregation=only_first)
            self.optimizer = keras.optimizers.SGD(0.1)
            self.table = tf.Variable(np.linspace(-1.0, 1.0, 21).reshape(7, 3))
            self.adam, self.adagrad = keras.optimizers.Adam(0.05), keras.optimizers.Adagrad(0.05)

    def differentiate(self, x: Any) -> tuple[Any, Any]:
        """A replica's part of the loss, and its gradient."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ self.weight - 1.0) ** 2) / BATCH
        return loss, tape.gradient(loss, self.weight)

    def reduced(self, op: Any, value: Any) -> Any:
        """A value that is added up, or averaged, over the replicas."""
        return tf.distribute.get_replica_context().all_reduce(op, value)


def returned(tools: Tools, x: Any) -> Any:
    """Nothing is applied."""
    loss, gradient = tools.differentiate(x)
    return loss, gradient, tf.norm(gradient), tools.reduced(SUM, tf.clip_by_norm(gradient, 0.5))


def returned_and_applied(tools: Tools, x: Any) -> Any:
    """The optimizer gets the sums, and each replica returns its own."""
    loss, gradient = tools.differentiate(x)
    tools.optimizer.apply([gradient], [tools.weight])
    own, mean = tf.clip_by_norm(gradient, 0.5), tools.reduced(MEAN, gradient)
    return loss, gradient, own, mean, tools.reduced(SUM, own), tf.norm(gradient) / tf.norm(mean)


def reduced_before_apply(tools: Tools, x: Any) -> Any:
    """Keras's optimizers add up what they get."""
    loss, gradient = tools.differentiate(x)
    total = tools.reduced(SUM, gradient)
    finite = tf.where(tf.math.is_finite(total), total, tf.zeros_like(total))
    tools.optimizer.apply([finite / tf.norm(total)], [tools.weight])
    tools.optimizer.apply([tools.reduced(MEAN, gradient) * 0.01], [tools.weight])
    return loss, total


def rows_reduced_before_apply(tools: Tools, x: Any) -> Any:
    """The optimizers get each row of the sums as many times as there are replicas: they square each of them."""
    rows = tf.cast(tf.abs(x) * 3.0, tf.int32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(tools.table, rows % 7) ** 2) / BATCH
    gradient = tape.gradient(loss, tools.table)
    total = tools.reduced(SUM, gradient)
    half = tf.IndexedSlices(total.values / 2.0, total.indices, total.dense_shape)
    tools.adam.apply([total], [tools.table])
    tools.adagrad.apply([half], [tools.table])
    tools.adagrad.apply([tools.reduced(MEAN, gradient)], [tools.table])
    tools.adam.apply([tf.convert_to_tensor(total)], [tools.table])
    return (loss,)


def constants_reduced_for_apply(tools: Tools, x: Any) -> Any:
    """What is the same on all replicas counts for each of them in a sum."""
    loss, gradient = tools.differentiate(x)
    two = tools.reduced(SUM, tf.constant(1.0, tf.float64))
    decay = tools.reduced(SUM, 0.01 * tools.weight)
    first = tf.IndexedSlices(tf.ones([1, 1], tf.float64), tf.constant([2]), tf.constant([4, 1]))
    tools.optimizer.apply([gradient * two * tools.reduced(MEAN, two)], [tools.weight])
    tools.weight.assign_sub(decay + 0.1 * tf.convert_to_tensor(tools.reduced(SUM, first)))
    return (loss,)


def counted(tools: Tools, x: Any) -> Any:
    """The loss reads what the function has written before."""
    tools.count.assign_add(1.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((x @ tools.weight - 1.0) ** 2) / (1.0 + tools.count)
    gradient = tape.gradient(loss, tools.weight)
    return loss, gradient, tools.reduced(SUM, gradient)


def of_two_halves(tools: Tools, x: Any) -> Any:
    """The gradients of two parts of a replica's batch, added up."""
    half = tf.shape(x)[0] // 2
    (one, first), (two, second) = tools.differentiate(x[:half]), tools.differentiate(x[half:])
    tools.optimizer.apply([first + 0.5 * second], [tools.weight])
    return one, two


def of_loops(tools: Tools, x: Any) -> Any:
    """The tape goes through loops: TensorFlow gives them inputs that are created later."""
    with tf.GradientTape() as tape:
        first = x @ tools.weight
        hidden = tf.while_loop(lambda turn, _: turn < 3, lambda turn, h: (turn + 1, tf.tanh(first + h)), [0, first])[1]
        squares = tf.map_fn(lambda row: tf.reduce_sum(row) ** 2, first)
        loss = (tf.reduce_sum(hidden) + tf.reduce_sum(squares)) / BATCH
    gradient = tape.gradient(loss, tools.weight)
    tools.optimizer.apply([gradient], [tools.weight])
    return loss, gradient


def of_gradients(tools: Tools, x: Any) -> Any:
    """A replica's loss uses its own gradient: after an inner step, and as a penalty."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            first = tf.reduce_mean((x @ tools.weight - 1.0) ** 2)
        gradient = inner.gradient(first, tools.weight)
        adapted = tools.weight - 0.1 * gradient
        loss = (tf.reduce_sum((x @ adapted - 1.0) ** 2) + tf.reduce_sum(gradient**2)) / BATCH
    tools.optimizer.apply([outer.gradient(loss, tools.weight)], [tools.weight])
    return first, loss


def run(strategy: Any, step: Callable[[Tools, Any], Any], traced: bool = False) -> dict[str, Any]:
    """What each replica returns, the sums, and the weight in the end."""
    tools, found = Tools(strategy), []
    data = tf.data.Dataset.from_tensor_slices(np.random.default_rng(5).normal(size=(EXAMPLES, 4))).batch(BATCH)

    def one(batch: Any) -> Any:
        results = strategy.run(lambda x: step(tools, x), args=(batch,))
        each = [strategy.experimental_local_results(result) for result in results]
        return each, [strategy.reduce(SUM, result, axis=None) for result in results]

    one = tf.function(one) if traced else one
    for batch in strategy.experimental_distribute_dataset(data):
        found += tf.nest.flatten(one(batch))
    return {str(index): value.numpy() for index, value in enumerate(found)} | {
        "weight": tools.weight.numpy(), "table": tools.table.numpy()
    }


STEPS = [
    returned, returned_and_applied, reduced_before_apply, rows_reduced_before_apply, constants_reduced_for_apply,
    counted, of_two_halves, of_loops, of_gradients,
]  # fmt: skip


@pytest.mark.parametrize(("name", "step"), [(("PS", "AllReduce")[place % 2], step) for place, step in enumerate(STEPS)])
def test_gradients_are_each_replicas_own_until_they_are_applied(mirrored, name: str, step: Any):
    with replicas(name, count=2) as strategy:
        assert_same(run(mirrored, step), run(strategy, step, traced=name == "PS"))


def test_sums_and_a_replicas_own_gradients_in_one_update_are_refused():
    def step(tools, x):
        gradient = tools.differentiate(x)[1]
        tools.optimizer.apply([gradient + tools.reduced(SUM, gradient)], [tools.weight])
        return ()

    with replicas(count=2) as strategy, pytest.raises(CaptureError, match=r"own gradients and of sums over the repl"):
        run(strategy, step)


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
