"""Numbers of the whole batch inside a marked function: synchronized batch normalization, and all_reduce."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import whole_batch
from autodist_core.errors import CaptureError
from tests.support.loops import (
    BATCHES,
    Net,
    assert_equal_loops,
    assert_exact_plans,
    autodist,
    batches,
    descend,
    examples,
    values,
)


def _normalized(front: Any) -> Any:
    """Two functions: one with a mean loss and one with a sum, and evaluation by the moving statistics."""
    norm = keras.layers.BatchNormalization(synchronized=True, momentum=0.5, dtype="float64")
    norm.build((None, 7))
    net = Net()
    trained = [*net.variables, norm.gamma.value, norm.beta.value]

    def losses(x, y, training):
        logits = norm(tf.tanh(x @ net.kernel + net.bias), training=training) @ net.out
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)

    mean = front.function(lambda x, y: descend(lambda: tf.reduce_mean(losses(x, y, True)), trained, 0.05))

    @front.function
    def of_sum(x, y):
        return descend(lambda: (tf.reduce_sum(losses(x, y, True)) + tf.nn.l2_loss(net.kernel)) / 13.0, trained, 0.05)

    evaluate = front.function(lambda x, y: tf.reduce_mean(losses(x, y, False)))
    seen = [[step(x, y) for step in (mean, of_sum, evaluate)] for x, y in batches(*examples())]
    assert_exact_plans(mean, of_sum)
    return {"seen": seen, "weights": values(trained, norm.variables)}


def _contrastive(front: Any) -> Any:
    """Losses that compare all examples of the batch with each other: a mean, and a mean plus a sum of examples."""
    net = Net()
    rate = tf.constant(0.05, tf.float64)

    def apart(x, y):
        whole, labels = whole_batch((tf.tanh(x @ net.kernel + net.bias), y))
        scores = tf.matmul(whole, whole, transpose_b=True)
        same = tf.cast(labels[:, None] == labels[None], scores.dtype)
        return tf.reduce_mean(tf.reduce_logsumexp(scores, 1) - tf.reduce_sum(same * scores, 1) / tf.reduce_sum(same, 1))

    mean = front.function(lambda x, y: net.train(lambda: apart(x, y) + net.loss(x, y), rate))
    both = front.function(lambda x, y: net.train(lambda: apart(x, y) + tf.reduce_sum(net.losses(x, y)) / 13.0, rate))
    seen = [[step(x, y) for step in (mean, both)] for x, y in batches(*examples())]
    assert_exact_plans(mean, both)
    return {"seen": seen, "weights": values(net.variables)}


def _reduced(front: Any) -> Any:
    @front.function
    def step(x):
        context = tf.distribute.get_replica_context()
        total, count = context.all_reduce("SUM", [tf.reduce_sum(x, 0), tf.cast(tf.shape(x)[0], x.dtype)])
        mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(x, 0))
        return x - mean, total / count, mean, total

    return [step(x) for x, _ in batches(*examples())]


def _changed_rows(front: Any) -> Any:
    """Rows of tables, of which the same come up several times, are changed between a tape and an optimizer of Keras."""
    random = np.random.default_rng(5)
    tables = [tf.Variable(random.normal(size=(11, 3)), name=f"table_{at}") for at in range(4)]
    optimizers = [
        keras.optimizers.Adam(0.05), keras.optimizers.RMSprop(0.05, clipnorm=0.1),
        keras.optimizers.Adagrad(0.05, clipvalue=0.005), keras.optimizers.SGD(0.05, momentum=0.9),
    ]  # fmt: skip
    for optimizer, table in zip(optimizers, tables, strict=True):
        optimizer.build([table])

    @front.function
    def step(x, y):
        with tf.GradientTape() as tape:
            errors = [tf.reduce_sum(tf.gather(each, x), [1, 2]) - y for each in tables]
            loss = tf.add_n([tf.reduce_mean(each**2) for each in errors])
        found = tape.gradient(loss, tables)
        clipped, norm = tf.clip_by_global_norm(found[:1], 0.2)
        if tf.math.is_finite(norm):
            optimizers[0].apply(clipped, tables[:1])
        optimizers[1].apply(found[1:2], tables[1:2])
        optimizers[2].apply(found[2:3], tables[2:3])
        optimizers[3].apply([tf.IndexedSlices(2.0 * found[3].values, found[3].indices, [11, 3])], tables[3:])
        return loss, norm

    rows, targets = random.integers(0, 11, (sum(BATCHES), 4)), random.normal(size=sum(BATCHES))
    seen = [step(x, y) for x, y in batches(rows, targets)]
    return {"seen": seen, "tables": values(tables, *(each.variables for each in optimizers))}


@pytest.mark.quick("_normalized-AllReduce", "_contrastive-PS", "_reduced-PS", "_changed_rows-AllReduce")
@pytest.mark.parametrize(("loop", "strategy"), [
    (_normalized, "AllReduce"), (_contrastive, "PS"), (_reduced, "PS"),
    *((_changed_rows, strategy) for strategy in ("PS", "AllReduce", "PartitionedPS")),
])  # fmt: skip
def test_a_loop_with_numbers_of_the_whole_batch_equals_one_device(loop: Any, strategy: str):
    assert_equal_loops(loop, strategy)


@pytest.mark.parametrize("nested", ["conditional", "function"])
def test_all_reduce_of_the_batch_in_a_nested_graph_is_refused(nested: str):
    def total(x):
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(x))

    inner = tf.function(total)
    call = {"conditional": lambda x: tf.cond(x[0] > 0, lambda: total(x), lambda: 0.0), "function": inner}[nested]
    with autodist() as front:
        for _ in range(2):  # a nested function is traced at the first call only
            with pytest.raises(CaptureError, match="all_reduce is called inside a loop, a conditional or a nested"):
                front.function(lambda x: call(x))(tf.ones([4]))


def _moved_towards(inner: int, loss_of: Any) -> Any:
    """A function that descends on copies of its weights, and moves the weights half of the way to them."""

    def program(front):
        net = Net()

        @front.function
        def step(x, y):
            weights = [tf.identity(each) for each in net.variables]
            for _ in range(inner):
                with tf.GradientTape() as tape:
                    tape.watch(weights)
                    kernel, bias, out = weights
                    logits = tf.tanh(x @ kernel + bias) @ out
                    loss = loss_of(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
                gradients = tape.gradient(loss, weights)
                weights = [each - 0.05 * gradient for each, gradient in zip(weights, gradients, strict=True)]
            for variable, moved in zip(net.variables, weights, strict=True):
                variable.assign_add(0.5 * (moved - variable))
            return loss

        seen = [step(x, y) for x, y in batches(*examples())]
        plan = step.plan(*next(batches(*examples()))) if hasattr(step, "plan") else ""
        return {"seen": seen, "weights": values(net.variables), "plan": plan}

    return program


def test_a_gradient_by_copies_of_the_weights_counts_as_the_loss_does():
    def program(front):
        found = _moved_towards(1, tf.reduce_mean)(front)
        assert "not exact" not in found.pop("plan")
        return found

    assert_equal_loops(program, "PS")


@pytest.mark.parametrize(("inner", "loss_of", "words"), [
    (1, tf.reduce_sum, "what is written to it is made by Identity (gradient_by_tensor)"),
    (2, tf.reduce_mean, "Identity (gradient_by_tensor) gives each example a value of the whole batch"),
], ids=["of a sum", "used again"])  # fmt: skip
def test_another_use_of_such_a_gradient_is_named(inner: int, loss_of: Any, words: str):
    with autodist(replicas=2) as front:
        plan = _moved_towards(inner, loss_of)(front)["plan"]
    assert "not exact" in plan
    assert words in plan
