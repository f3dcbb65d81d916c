"""What XLA compiles of each replica's compute: the same numbers as plain Keras under XLA, and what stays outside."""

import itertools
import re
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.kernel import build
from autodist_core.kernel.passes import compile as compiling
from autodist_core.strategy import AllReduce
from tests.equality.test_optimizers import OPTIMIZERS, REFERENCES
from tests.kernel.graphs import ancestors, machine, placed, placed_on
from tests.support.compare import assert_same, named
from tests.support.graphs import captured
from tests.support.layers import Does
from tests.support.models import BY_NAME, DENSE, MODELS, TWICE, dense_data, ready, stacked
from tests.support.training import assert_equal_training, distributed, fit, seeded

EMBEDDING, LSTM = BY_NAME["embedding"], BY_NAME["lstm"]


def _with_xla() -> dict:
    return {"jit_compile": True}


@pytest.mark.quick("embedding-PS-3")
@pytest.mark.parametrize("case, strategy, replicas", [
    (DENSE, "AllReduce", 2), (DENSE, "PS", 1), (EMBEDDING, "PS", 3), (EMBEDDING, "AllReduce", 2),
    (LSTM, "AllReduce", 2), (TWICE[0], "PS", 3), (DENSE, "Gathered", 2), (LSTM, "KeptForSome", 3),
], ids=["dense-AllReduce-2", "dense-PS-1", "embedding-PS-3", "embedding-AllReduce-2", "lstm-AllReduce-2",
        "twice-PS-3", "dense-Gathered-2", "lstm-KeptForSome-3"])  # fmt: skip
def test_compiled_replicas_train_as_plain_keras_under_xla(case, strategy: str, replicas: int):
    assert_equal_training(case.compiled_with(_with_xla), strategy=strategy, replicas=replicas, epochs=2)


@pytest.mark.parametrize("case", [each for each in MODELS if each.reference is None], ids=str)
def test_every_model_trains_as_plain_keras_under_xla(case):
    for replicas in (1, 2):
        assert_equal_training(
            case.compiled_with(_with_xla), strategy="Parallax", replicas=replicas, share_memory=None, epochs=2
        )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_as_in_plain_keras_under_xla(name):
    case = REFERENCES[name].compiled_with(_with_xla)
    for fused in (True, False):
        assert_equal_training(case, strategy="AllReduce", replicas=1, fused_kernels=fused, built=False)
        assert_equal_training(
            case, strategy="AllReduce", replicas=2, share_memory=None, fused_kernels=fused, built=False
        )
    assert_equal_training(case, strategy="PS", replicas=2, built=False)


def _drawing() -> keras.Model:
    layers = keras.layers
    return stacked(
        keras.Input((5,)), layers.Dense(6, activation="tanh"), layers.Dropout(0.4), layers.Dense(1),
        optimizer=keras.optimizers.SGD(0.1), jit_compile=True,
    )


def test_one_replica_draws_what_plain_keras_draws_under_xla():
    """XLA draws other numbers than TensorFlow's own kernels: this holds only if the draws are compiled, too."""
    assert_equal_training(_drawing, lambda front, model: fit(front, dense_data(), epochs=2), replicas=1)


def _with_words() -> keras.Model:
    """Numbers become strings and numbers again, which XLA cannot do."""
    layers = keras.layers
    words = Does(lambda x: x + 0.1 * tf.strings.to_number(tf.strings.as_string(tf.round(x)), x.dtype), "words")
    return stacked(
        keras.Input((5,)), layers.Dense(6, activation="tanh"), words, layers.Dense(1),
        optimizer=keras.optimizers.SGD(0.1), jit_compile=True,
    )


def test_what_xla_cannot_compile_stays_outside_and_is_named_in_the_plan():
    data = dense_data(8)
    with distributed(seeded(_with_words)) as front:
        note = next(line for line in str(front.plan(data.x, data.y)).splitlines() if "compiled by XLA" in line)
        assert "1 AsString (" in note and "1 StringToNumber (" in note and "words" in note
        before = front.model.get_weights()
        front.fit(data.x, data.y, batch_size=8, verbose=0)
        assert not (front.model.get_weights()[0] == before[0]).all()


def _range_of_value(chosen: bool, x: tf.Tensor) -> tf.Tensor:
    """A range whose end depends on values, behind rows that are cut into threes or that are chosen by a value."""
    if chosen:
        x = tf.gather(x, tf.where(x[:, 0] > -1e6)[:, 0])
    else:
        x = tf.reshape(tf.reshape(x, [-1, 3, x.shape[1]]) * 1.5, tf.shape(x))
    end = 3 * tf.reduce_sum(tf.cast(tf.abs(x[:1, :1]) < 1e6, tf.int32))
    return x + 0.1 * tf.cast(tf.reduce_sum(tf.range(end)), x.dtype)


def _with_range(chosen: bool, jit_compile: bool) -> keras.Model:
    layers = keras.layers
    return stacked(
        keras.Input((5,)), layers.Dense(6, activation="gelu"), Does(partial(_range_of_value, chosen)),
        layers.Dense(6, activation="gelu"), layers.Dense(1), optimizer=keras.optimizers.SGD(0.1),
        jit_compile=jit_compile,
    )  # fmt: skip


@pytest.mark.quick("1-True", "2-False")
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_value_that_xla_needs_when_it_compiles_stays_outside_whatever_the_sizes(replicas: int, chosen: bool):
    """Plain Keras cannot compile this model."""
    data = dense_data(18)
    plain = seeded(partial(_with_range, chosen, False))
    plain.fit(data.x, data.y, batch_size=6, shuffle=False, verbose=0)
    with distributed(seeded(partial(_with_range, chosen, True)), replicas=replicas, share_memory=None) as front:
        front.fit(data.x, data.y, batch_size=6, shuffle=False, verbose=0)
        assert_same(named(plain.weights), named(front.model.weights))


def test_the_plan_says_which_part_of_the_update_stays_outside():
    data, optimizers = dense_data(8), keras.optimizers
    scaled = optimizers.LossScaleOptimizer(optimizers.SGD(0.1))
    for optimizer, outside in ((optimizers.SGD(0.1), False), (scaled, True)):
        model = ready(seeded(DENSE.build), optimizer, "mse", jit_compile=True)
        with distributed(model, replicas=2, share_memory=None) as front:
            note = next(line for line in str(front.plan(data.x, data.y)).splitlines() if "compiled by XLA" in line)
        assert "in one with the update" in note
        assert ("in one with the update without " in note) is outside, note


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_that_raises_changes_nothing_under_xla(replicas: int):
    """XLA cannot compile the assertion. It needs the forward pass, so a piece runs before it.

    Weights, slots and metrics are written later.
    """

    def below(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, tf.cast(50.0, x.dtype))]):
            return tf.identity(x)

    def build_model():
        stack = [keras.Input((5,)), keras.layers.Dense(6), Does(below), keras.layers.Dense(1)]
        return stacked(*stack, optimizer=keras.optimizers.Adam(0.1), metrics=["mae"], jit_compile=True)

    data = dense_data(8)
    with distributed(seeded(build_model), replicas=replicas, share_memory=None) as front:
        front.train_on_batch(data.x, data.y)
        before = [variable.numpy() for variable in front.model.variables]
        with pytest.raises(tf.errors.InvalidArgumentError):
            front.train_on_batch(1e6 * data.x, data.y)
        after = [variable.numpy() for variable in front.model.variables]
        assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
        front.train_on_batch(data.x, data.y)
        assert front.model.optimizer.iterations.numpy() == 2


def test_replicas_run_one_function_and_nothing_is_compiled_unless_asked_for():
    x, y = tf.ones((4, 5), "float64"), tf.ones((4, 1), "float64")

    def calls(jit_compile: bool) -> list[list[str]]:
        def build_model():
            return ready(DENSE.build(), "sgd", "mse", jit_compile=jit_compile)

        item = captured(seeded(build_model), x, y).item
        graph = build(item, placed(item, AllReduce(), machine(2), share_memory=False)).graph_def
        found = [node for node in graph.node if node.op == "PartitionedCall"]
        return [
            [node.attr["f"].func.name for node in found if node.name.startswith(f"replica{replica}/")]
            for replica in range(2)
        ]

    first, second = calls(True)
    assert first and first == second
    assert calls(False) == [[], []]


def test_over_machines_the_first_gradients_are_sent_before_the_last_piece_has_run(monkeypatch):
    """On one machine, compute is one piece; over machines, a piece ends where a collective is full."""
    monkeypatch.setattr(compiling, "BUCKET_BYTES", 5 * 8 * 6)

    def build_model():
        layers = [keras.layers.Dense(6, activation="gelu") for _ in range(4)]
        return stacked(keras.Input((5,)), *layers, keras.layers.Dense(1), jit_compile=True)

    def before_collectives(*cpus: int) -> list[list[str]]:
        graph = build(item, placed_on(item, AllReduce(bucket_bytes=5 * 8 * 6), *cpus)).graph_def.node
        sums = [node.name for node in graph if re.match("all_reduce/.*/replica0/(joined|sum)$", node.name)]
        return [sorted(name for name in ancestors(graph, each) if "replica0/compiled/" in name) for each in sums]

    item = captured(seeded(build_model), tf.ones((4, 5), "float64"), tf.ones((4, 1), "float64")).item
    alone, over = before_collectives(2), before_collectives(1, 1)
    assert len(set(map(tuple, alone))) == 1
    assert len(alone[0]) <= len(over[0]) < len(over[-1])
    assert all(set(earlier) <= set(later) for earlier, later in itertools.pairwise(over))
