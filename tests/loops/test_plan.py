"""What a marked function's plan says: of metrics, several training functions, methods, and losses that mix examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec
from autodist_core.reports.comparison import Explanation, compare
from autodist_core.step.graph_item import Variable
from autodist_core.training import Entry
from autodist_keras import DistributedModel
from tests.support.loops import autodist as replicas
from tests.support.loops import descend

SPEC = {"nodes": [{"address": "localhost", "cpus": [0, 1]}]}


def test_a_mean_of_losses_is_exact_and_the_plan_does_not_deny_it():
    mean, loss_of, values = keras.metrics.Mean(), keras.losses.MeanSquaredError(), np.arange(5.0, dtype="float32")

    with AutoDist(SPEC, "PS") as autodist:

        @autodist.function
        def evaluate(x):
            mean.update_state(loss_of(x, 0 * x))

        plan = evaluate.plan(values)
        evaluate(values)
        evaluate(values[:1])
    assert "not exact" not in plan
    assert float(mean.result()) == (np.mean(values**2) + values[0] ** 2) / 2


def test_functions_that_train_are_placed_together_and_their_plans_say_so():
    large, small, other = (tf.Variable(tf.zeros(size), name=f"of_{size}") for size in (100, 10, 50))
    with replicas("PSLoadBalancing") as front:

        def trained_by(*variables):
            def step(x, rate):
                descend(lambda: tf.reduce_mean(x) * tf.add_n(list(map(tf.reduce_sum, variables))), [*variables], rate)

            return front.function(step)

        first, second = trained_by(large, small), trained_by(other)
        given = tf.ones(4), tf.constant(0.5)
        assert "of_50 : f32[50]  ps(localhost:CPU:0)" in second.plan(*given)
        alone = first.plan(*given)
        first(*given)
        assert first.plan(*given) == alone
        plan = second.plan(*given)
        assert "of_50 : f32[50]  ps(localhost:CPU:1)" in plan and "of_100" not in plan and "placed together" in plan
        second(*given)
        assert second.plan(*given) == plan
        owners = front.engine.training.state.session.placement.owner_of
        assert owners["of_50"] == "server_localhost_CPU_1" and "of_50" not in first.plan(*given)


def test_the_plan_of_a_function_that_assigns_what_another_one_trains_says_who_does_it():
    weight = tf.Variable(2.0, dtype=tf.float64, name="weight")
    with replicas(replicas=2) as front:

        @front.function
        def train(x):
            descend(lambda: tf.reduce_mean(x * weight), weight, 0.5)

        zero = front.function(lambda: weight.assign(0.0))
        assert "  note: the function applies no gradients: every replica has a copy" in zero.plan().splitlines()
        train(np.ones(4))
        expected = "  note: the function assigns variables that other functions train: their owners do this"
        assert expected in zero.plan().splitlines()
        zero()
        assert float(weight) == 0.0


def test_a_marked_method_has_a_plan_and_can_be_verified():
    with replicas() as front:

        class Trainer:
            def __init__(self):
                self.weight = tf.Variable([0.0, 0.0], name="weight")

            @front.function
            def step(self, x):
                """One step."""
                return descend(lambda: tf.reduce_mean((x @ self.weight[:, None] - 1.0) ** 2), self.weight, 0.1)

        trainer, x = Trainer(), np.ones((4, 2), "float32")
        assert "weight : f32[2]  ps(localhost:CPU:0)" in trainer.step.plan(x)
        assert trainer.step.verify(x, steps=2).startswith("2 steps on one device and over all replicas")
        assert trainer.weight.numpy().tolist() == [0.0, 0.0]
        assert float(trainer.step(x)) == 1.0 and trainer.step.__doc__ == "One step."


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_not_exact_is_said_once_by_a_loop_and_by_fit(caplog, count: int):
    def root(x):
        return tf.sqrt(tf.reduce_prod(x**2))

    note = "not exact: result 0 (float64) is the replicas' mean, and Prod (Prod) does not make a mean over the examples"
    with replicas(replicas=count) as front:
        marked = front.function(root)
        for shape in (4, 4, (4, 2)):
            marked(np.ones(shape))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="rooted")
    with DistributedModel(model, ResourceSpec.local(cpus=count)) as wrapped:
        wrapped.compile("sgd", lambda y, predicted: predicted - tf.reduce_mean(predicted, 0))
        for _ in range(2):
            wrapped.fit(np.ones((4, 3)), np.ones((4, 1)), batch_size=4, verbose=0)
    said = [each.getMessage() for each in caplog.records if "not exact" in each.getMessage()]
    assert [each.partition(":")[0] for each in said] == ([] if count == 1 else ["root", "rooted"])
    assert count == 1 or said[0] == f"root: {note}."


def test_a_note_on_a_result_is_no_reason_for_other_variables():
    """`verify` shows it, and raises an error all the same if a variable differs."""
    weight, traces = tf.Variable(np.ones(3), name="weight"), []

    def step(x):
        traces.append(step)  # no two traces train alike, so one device and the replicas do not
        return tf.sqrt(descend(lambda: tf.reduce_mean((x @ weight[:, None] - 1.0) ** 2), weight, 0.1 * len(traces)))

    with replicas() as front:
        marked, x = front.function(step), np.ones((4, 3))
        assert "not exact: result 0 (float64)" in marked.plan(x)
        with pytest.raises(ValueError, match=r"differs from one device in weight \(") as found:
            marked.verify(x)
        assert "not exact" not in str(found.value)


TABLE = tf.constant(np.linspace(0.0, 1.0, 12))
LINEAR = tf.custom_gradient(lambda x: (2 * x, lambda upstream: upstream * 2))
RECOMPUTED = tf.recompute_grad(lambda x: tf.tanh(x))
LOSSES = {
    "table": (lambda errors: tf.reduce_mean(errors * TABLE[: tf.shape(errors)[0]]), "StridedSlice"),
    "behind": (lambda errors: tf.reduce_mean(errors * tf.reverse(TABLE[: tf.shape(errors)[0]], [0])), "StridedSlice"),
    "padded": (lambda errors: tf.reduce_mean(tf.pad(errors, [[0, 2]])), "Pad"),
    "linear gradient": (lambda errors: LINEAR(tf.reduce_mean(errors)), None),
    "recomputed": (lambda errors: tf.reduce_mean(RECOMPUTED(errors)), None),
    "loop of means": (lambda errors: tf.while_loop(
        lambda at, total: at < 3, lambda at, total: (at + 1, total + tf.reduce_mean(errors)),
        [0, tf.constant(0.0, tf.float64)])[1], None),
}  # fmt: skip


def test_losses_that_mix_examples_are_named_and_others_are_not():
    with AutoDist(SPEC, "PS") as autodist:
        kernel = tf.Variable(np.ones(5))

        def step_of(loss):
            @autodist.function
            def step(x):
                return descend(lambda: loss(tf.reduce_sum(x * kernel, 1) ** 2), kernel, 0.1)

            return step

        for case, (loss, operation) in LOSSES.items():
            function, x = step_of(loss), np.linspace(0.0, 1.0, 60).reshape(12, 5)
            notes = [line for line in function.plan(x).splitlines() if "not exact: " in line or "whether " in line]
            assert [f" {operation} (" in note for note in notes] == ([True] if operation else []), (case, notes)
            assert operation or function.verify(x)


def test_verify_of_a_function_that_returns_an_operation():
    weight, optimizer = tf.Variable([0.5, -0.5], name="weight"), tf.compat.v1.train.GradientDescentOptimizer(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight[:, None] - 1.0) ** 2)
        return loss, optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    with replicas() as front:
        table = front.function(step).verify(np.ones((4, 2), "float32"), steps=2)
    assert "\nverdict: equal to one device, up to rounding, in the 1 variable of the table" in table


@pytest.mark.parametrize("kind", [tf.float32, tf.float16], ids=lambda kind: kind.name)
def test_rounding_of_the_type_in_which_a_step_computes_is_no_difference(kind: tf.DType):
    random = np.random.default_rng(3)
    weights = [tf.Variable(random.normal(size=size), name=f"of_{size[0]}") for size in ((6, 8), (8, 1))]

    def loss_of(x):
        first, second = (tf.cast(each, kind) for each in weights)
        errors = tf.tanh(tf.cast(x, kind) @ first) @ second - 1
        return tf.reduce_mean(tf.cast(errors, tf.float64) ** 2)

    with replicas("AllReduce", replicas=3) as front:
        step = front.function(lambda x: descend(lambda: loss_of(x), weights, 0.1))
        table = step.verify(random.normal(size=(7, 6)))
    assert f"last bit of {kind.name}" in table
    assert "\nverdict: equal to one device, up to rounding, in the 2 variables of the table" in table


def test_a_difference_above_the_rounding_of_a_coarser_type_is_named():
    weight = tf.Variable(np.linspace(0.5, 1.0, 4), name="weight")
    entries = [Entry(Variable("weight", (4,), "float64"), weight)]

    def train(rate):
        weight.assign_sub(rate * tf.cast(tf.cast(weight, tf.float16) ** 2, tf.float64))

    with pytest.raises(ValueError, match="differs from one device in weight"):
        compare(entries, lambda: train(0.1), lambda: train(0.11), 1, lambda: Explanation((), ()), lambda: "float16")


def test_verify_says_that_one_device_begins_the_draws_of_an_update_anew():
    weight = tf.Variable(np.ones(4), name="weight")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x * weight)
        weight.assign_sub(tape.gradient(loss, weight) + tf.random.normal([4], seed=1, dtype=tf.float64))

    with replicas() as front:
        marked = front.function(step)
        marked(np.ones((5, 4)))
        table = marked.verify(np.ones((5, 4)))
        assert "not exact" not in marked.plan()
    assert "the update draws random numbers by RandomStandardNormal in " in table and "verdict: accepted" in table
