"""What a replica does to its own gradient before an optimizer gets it, and updates of Keras's in conditionals."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.distributed import SUM, replicas

WIDTH, BATCH, EXAMPLES = 4, 6, 13
"""Batches of 6, 6 and 1 examples: in the last one the second of two replicas has none."""
RANDOM = np.random.default_rng(7)
X, IDS = RANDOM.normal(size=(EXAMPLES, WIDTH)), RANDOM.integers(0, WIDTH, size=EXAMPLES)
context = tf.distribute.get_replica_context


class Training:
    """A table of which rows are looked up, and a weight; an optimizer, or TensorFlow 1's, gets changed gradients."""

    def __init__(self, strategy: Any, optimizer: Callable[[], Any], change: Callable[[Any, Any], Any]) -> None:
        self.strategy, self.change = strategy, change
        with strategy.scope():
            self.weight = tf.Variable(np.linspace(-1.0, 1.0, WIDTH)[:, None])
            self.table = tf.Variable(np.linspace(0.5, 2.0, WIDTH)[:, None] * np.ones((WIDTH, 2)))
            self.total = tf.Variable(np.zeros((WIDTH, 1)), trainable=False)
            self.optimizer = optimizer()

    def step(self, x: Any, ids: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = (x @ self.weight - 1.0) ** 2 + tf.reduce_sum(tf.gather(self.table, ids) ** 3, 1, keepdims=True)
            loss = tf.reduce_sum(losses) / BATCH
        variables = [self.weight, self.table]
        gradients = [self.change(*pair) for pair in zip(tape.gradient(loss, variables), variables, strict=True)]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss, context().all_reduce(SUM, gradients[0]), tf.norm(gradients[0])

    def add(self, x: Any, ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ self.weight - 1.0) ** 2) / BATCH
        self.total.assign_add(tape.gradient(loss, self.weight))

    def apply(self) -> None:
        self.optimizer.apply_gradients([(self.change(self.total.read_value(), self.weight), self.weight)])
        self.total.assign(tf.zeros_like(self.total))

    def train(self, accumulates: bool = False) -> dict[str, Any]:
        found, data = {}, tf.data.Dataset.from_tensor_slices((X, IDS)).batch(BATCH)
        for number, batch in enumerate(self.strategy.experimental_distribute_dataset(data)):
            if accumulates:
                self.strategy.run(self.add, args=batch)
                self.strategy.run(self.apply)
            else:
                results = self.strategy.run(self.step, args=batch)
                for index, result in enumerate(results if number < 2 else ()):  # results of replicas with examples
                    found[f"result {index} of {number}"] = np.asarray(self.strategy.reduce(SUM, result, axis=None))
        return found | {"weight": self.weight.numpy(), "table": self.table.numpy()}


def decayed(gradient: Any, variable: Any) -> Any:
    return gradient + 0.1 * variable


CHANGES = {
    "decay": decayed,
    "chain": lambda gradient, variable: (2.0 * gradient - tf.sin(variable)) / 3.0 + 1.0,
    "matrix": lambda gradient, variable: tf.transpose(tf.transpose(gradient + variable) @ (2 * np.eye(WIDTH))),
    "own rows": lambda gradient, variable: tf.concat([gradient[:1], gradient[1:] + 0.1 * variable[1:]], 0),
    "drawn alike": lambda gradient, variable: gradient + tf.random.stateless_normal(
        variable.shape, seed=[1, 2], dtype=variable.dtype),
    "sum and decay": lambda gradient, variable: decayed(context().all_reduce(SUM, gradient) / 2.0, variable),
}  # fmt: skip
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9), "adam": lambda: keras.optimizers.Adam(0.01),
    "v1": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
}  # fmt: skip


@pytest.mark.quick("decay-adam-PartitionedPS", "own rows-v1-Parallax")
@pytest.mark.parametrize(
    ("optimizer", "strategy"), [("momentum", "PS"), ("adam", "PartitionedPS"), ("v1", "Parallax")]
)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_added_to_a_gradient_counts_on_each_replica(mirrored, change: str, optimizer: str, strategy: str):
    def dense(gradient: Any, variable: Any) -> Any:
        return CHANGES[change](tf.convert_to_tensor(gradient), variable)

    with replicas(strategy, count=2) as ours:
        found = Training(ours, OPTIMIZERS[optimizer], dense).train()
    assert_same(Training(mirrored, OPTIMIZERS[optimizer], dense).train(), found)


def test_what_is_added_to_a_sum_of_gradients_counts_on_each_replica(mirrored):
    with replicas("PS", count=2) as ours:
        found = Training(ours, OPTIMIZERS["momentum"], decayed).train(accumulates=True)
    assert_same(Training(mirrored, OPTIMIZERS["momentum"], decayed).train(accumulates=True), found)


def accumulating() -> Any:
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)


def clipped(gradient: Any) -> Any:
    return tf.clip_by_global_norm([gradient], 1.0)[0][0]


NOTED = {
    "Mul (clip_by_global_norm/mul_1) changes gradients before apply adds them up": (
        lambda gradient, _: clipped(tf.convert_to_tensor(gradient)), OPTIMIZERS["momentum"]),
    "Sum (global_norm/Sum) changes gradients": (
        lambda gradient, _: gradient if isinstance(gradient, tf.Tensor) else clipped(gradient), OPTIMIZERS["momentum"]),
    "gives is added to a gradient before apply": (
        lambda gradient, _: gradient + tf.random.normal([1], dtype=tf.float64), OPTIMIZERS["momentum"]),
    "adds to a gradient, and counts once": (decayed, accumulating),
    "It belongs to apply, which gives one device's numbers here": (
        lambda gradient, _: tf.convert_to_tensor(gradient), lambda: keras.optimizers.SGD(0.1, clipnorm=0.1)),
}  # fmt: skip


@pytest.mark.parametrize("words", NOTED)
def test_a_note_names_what_counts_otherwise_than_under_tensorflow(words: str, caplog):
    change, optimizer = NOTED[words]
    with replicas("PS", count=2) as ours:
        training = Training(ours, optimizer, change)
        plan = ours.plan(training.step, args=(X, IDS))
        assert sum("not exact" in line and words in line for line in plan.splitlines()) == 1
        training.train()
    assert any(words in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_no_note_on_what_is_exact(caplog):
    def per_row(gradient: Any, _: Any) -> Any:
        if isinstance(gradient, tf.Tensor):
            return 3.0 * gradient - tf.reduce_mean(gradient, axis=0, keepdims=True)
        return tf.IndexedSlices(tf.clip_by_norm(gradient.values, 1.0, axes=[1]), gradient.indices, gradient.dense_shape)

    with replicas("PS", count=2) as ours:
        Training(ours, OPTIMIZERS["momentum"], per_row).train()
    assert not [record for record in caplog.records if "not exact" in record.getMessage()]


@pytest.mark.parametrize(("aggregation", "is_noted"), [("MEAN", True), ("NONE", False)])
def test_an_update_by_hand_of_a_variable_that_declares_a_mean_is_named(aggregation: str, is_noted: bool):
    """An optimizer adds the replicas' gradients up whatever the variable declares, as under TensorFlow's strategy."""
    with replicas(count=2) as strategy:
        with strategy.scope():
            weight = tf.Variable(np.ones((WIDTH, 1)), name="weight", aggregation=tf.VariableAggregation[aggregation])
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build([weight])

        def step(x, by_hand):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x @ weight) ** 2) / BATCH
            gradient = tape.gradient(loss, weight)
            if by_hand:
                weight.assign_sub(0.1 * gradient)
            else:
                optimizer.apply_gradients([(gradient, weight)])

        plans = [strategy.plan(step, args=(tf.constant(X[:BATCH]), by_hand)) for by_hand in (True, False)]
    assert ["variable 'weight' has the aggregation MEAN" in plan for plan in plans] == [is_noted, False], plans


def test_a_sum_that_is_assigned_with_its_own_value_is_named():
    """TensorFlow's strategy adds up what the replicas assign, and so the variable's value once for each of them."""
    with replicas(count=2) as strategy:
        with strategy.scope():
            seen = tf.Variable(0.0, name="seen", aggregation=tf.VariableAggregation.SUM)
            metric, area = keras.metrics.Mean(), keras.metrics.AUC(num_thresholds=3)
        writes = [
            lambda x: seen.assign(seen + tf.reduce_sum(x)), lambda x: seen.assign_add(tf.reduce_sum(x)),
            lambda x: metric.update_state(x), lambda x: area.update_state(x > 0, x),
        ]  # fmt: skip
        plans = [strategy.plan(write, args=(tf.ones((4, 1)),)) for write in writes]
    assert ["has the aggregation SUM" in plan for plan in plans] == [True, False, False, False], plans


EXAMPLES, BATCH = 17, 5
IN_CONDITIONALS: dict[str, Callable[[], Any]] = {
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
        optimizer = IN_CONDITIONALS[name]()
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
