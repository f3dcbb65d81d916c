"""What happens to single batches, to losses that are summed by hand, and to random streams."""

import re

import keras
import pytest
import tensorflow as tf

from tests.front.notes.models import unknown
from tests.support.compare import TOLERANCE, assert_same, relative_error
from tests.support.layers import Does
from tests.support.made_data import Batches
from tests.support.models import DENSE, Data, ReferenceModel, dense_data, dense_model, ready, stacked
from tests.support.plans import headed
from tests.support.steps import OwnLoss, OwnStep
from tests.support.training import (
    QUIET,
    assert_equal_training,
    compiled,
    distributed,
    fit,
    seeded,
    train_distributed,
    train_plain,
)

# Single batches


class CountsRows(keras.layers.Layer):
    """Writes down how many examples it saw last; an integer follows replica 0, a float is averaged over replicas."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="rows")
        self.average = self.add_weight(shape=(), initializer="zeros", trainable=False, name="average")

    def call(self, x):
        self.rows.assign(keras.ops.shape(x)[0])
        self.average.assign(keras.ops.cast(keras.ops.shape(x)[0], self.average.dtype))
        return x


def _counting() -> keras.Model:
    layers = [keras.Input((5,), name="x"), CountsRows(name="count"), keras.layers.Dense(1, name="out")]
    return keras.Sequential(layers, name="counting")


@pytest.mark.parametrize("examples, replicas, rows, average", [(10, 2, 5, 5.0), (11, 3, 4, (16 + 16 + 9) / 11),
                                                               (1, 2, 1, 1.0)])  # fmt: skip
def test_one_batch_is_divided_among_the_replicas(examples: int, replicas: int, rows: int, average: float):
    data, model = dense_data(examples), ready(seeded(_counting), "sgd", "mse", jit_compile=False)
    with distributed(model, replicas=replicas) as front:
        front.train_on_batch(data.x, data.y)
        assert model.get_layer("count").rows.numpy() == rows
        assert relative_error(average, model.get_layer("count").average.numpy()) <= TOLERANCE


# Losses that are reduced by hand


class Asks(OwnLoss, OwnStep):
    """Leaves the reduction to the compiled loss."""

    def own_loss(self, x, y):
        return self.compute_loss(x, y, self(x, training=True))

    def returned(self, x, loss):
        self.tracker.update_state(loss)
        return {"squares": self.tracker.result()}


class SummedSquares(keras.losses.Loss):
    """A value for each example, which Keras adds up."""

    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, y_true, y_pred):
        return tf.reduce_sum(tf.square(y_true - y_pred), axis=-1)


SUMS = {"keras": lambda: keras.losses.MeanSquaredError(reduction="sum"), "own": SummedSquares}


@pytest.mark.quick("Asks-keras")
@pytest.mark.parametrize("loss", SUMS)
@pytest.mark.parametrize("build", [Asks, dense_model])
def test_a_compiled_sum_is_the_whole_batchs_in_a_custom_step_too(build, loss: str):
    reference = ReferenceModel("asks", build, dense_data, lambda: {"loss": SUMS[loss]()})
    assert_equal_training(reference, replicas=3)
    data = dense_data()
    with distributed(compiled(reference, "sgd")) as front:
        assert "counts as a mean" not in front.plan(data.x, data.y)
        assert "note" not in front.verify(data.x, data.y)


COUPLED = {
    "dice": (keras.losses.Dice, lambda y: y),
    "tversky": (keras.losses.Tversky, lambda y: y),
    "circle": (keras.losses.Circle, lambda y: (y[:, 0] > 0).astype("int64")),
}


def test_losses_that_compare_examples_are_named():
    model, data = seeded(headed(COUPLED)), dense_data(16)
    losses = {name: loss(name=name) for name, (loss, _) in COUPLED.items()}
    targets = {name: labels(data.y) for name, (_, labels) in COUPLED.items()}
    model.compile(keras.optimizers.SGD(0.1), losses, jit_compile=False)
    with distributed(model) as front:
        plan, table = front.plan(data.x, targets), front.verify(data.x, targets)
    for name in COUPLED:
        note = f"note: not exact: loss '{name}' compares the examples of a batch with each other"
        assert note in plan and note.removeprefix("note: ") in table
        assert not re.search(rf"{name}/kernel +0\.0e\+00", table), "the weights are the same: nothing to explain"


def test_a_number_of_which_it_is_not_known_how_it_counts_is_in_the_plan():
    model, data = ready(seeded(dense_model), keras.optimizers.SGD(0.001), unknown, jit_compile=False), dense_data(16)
    with distributed(model) as front:
        assert (
            "how loss 'unknown' makes one number of the examples is not known: it counts as a mean over them; for "
            "another one, return a value for each example"
        ) in front.plan(data.x, data.y)


def test_a_loss_may_take_several_outputs_at_once():
    def build():
        x = keras.Input((5,), name="x")
        heads = {name: keras.layers.Dense(1, name=name)(x) for name in ("a", "b")}
        return keras.Model(x, {"both": heads}, name="heads")

    def both(y_true, y_pred):
        return sum(tf.reduce_mean(tf.square(y_true[name] - y_pred[name])) for name in ("a", "b"))

    def data():
        given = dense_data()
        return Data(given.x, {"both": {"a": given.y, "b": given.y**2}})

    assert_equal_training(ReferenceModel("heads", build, data, lambda: {"loss": {"both": both}}), replicas=3)


# Random streams


def test_the_state_of_random_layers_is_replica_0s():
    def build():
        drop, out = keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(1, name="out")
        return keras.Sequential([keras.Input((5,), name="x"), drop, out], name="dropped")

    def program(front, model):
        fit(front, dense_data())
        return [variable.numpy() for variable in model.variables if "seed" in variable.path]

    dropped = ReferenceModel("dropped", build, dense_data, DENSE.settings)
    expected, actual = train_plain(dropped, program), train_distributed(dropped, program, replicas=3)
    assert_same(expected.result, actual.result, tolerance=0.0)


# A step that applies twice and fails in between


class FailsHalfway(OwnStep):
    """Applies twice; the second gradient does not exist for an example that is far out."""

    def train_step(self, data):
        logs = super().train_step(data)
        x, y = data
        with tf.GradientTape() as tape:
            ratio = self(x, training=True) / tf.cast(x[:, :1] < 50.0, x.dtype)
            loss = tf.reduce_mean(tf.square(tf.debugging.check_numerics(ratio, "too far out") - y))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return logs


@pytest.mark.quick("True")
@pytest.mark.parametrize("share_memory", [True, False])
def test_the_first_update_of_a_step_that_fails_halfway_stays(share_memory: bool):
    data = dense_data(14)
    data.x[10] = 60.0  # in the second batch

    def program(front, model):
        with pytest.raises(tf.errors.InvalidArgumentError, match="too far out"):
            front.fit(data.x, data.y, **QUIET)
        return {"updates": int(model.optimizer.iterations)}

    def small_steps() -> dict:
        return {"optimizer": keras.optimizers.SGD(0.01)}

    halfway = ReferenceModel("halfway", lambda: FailsHalfway(name="halfway"), dense_data, small_steps)
    found = train_distributed(halfway, program, share_memory=share_memory)
    assert_same(train_plain(halfway, program).weights, found.weights)
    assert found.result["updates"] == 3


# Notes on what no analysis of the step shows


def _of_type(policy: str) -> keras.Model:
    layers = [keras.layers.Dense(2, name="one"), keras.layers.Flatten(), keras.layers.Dense(1, name="other")]
    for layer in layers:
        layer.dtype_policy = policy
    model = keras.Sequential([keras.Input((5,)), *layers])
    optimizer = keras.optimizers.SGD()
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if policy == "mixed_float16" else optimizer
    model.compile(optimizer, "mse", jit_compile=False)
    return model


ROUNDING = "sums over the examples, in another order, differ by rounding of "
OVERFLOWS = "not exact: a replica's smaller loss may overflow at another step, which then reduces the loss scale"


@pytest.mark.quick("float32-notes0", "mixed_float16-notes3")
@pytest.mark.parametrize("policy, notes", [
    ("float32", []), ("mixed_bfloat16", [f"{ROUNDING}bfloat16: one, other"]),
    ("bfloat16", [f"{ROUNDING}bfloat16: one, other and 4 weights"]),
    ("mixed_float16", [OVERFLOWS, f"{ROUNDING}float16: one, other"]),
])  # fmt: skip
def test_the_plan_notes_types_of_few_bits(policy: str, notes: list[str]):
    data = dense_data(8)
    for replicas in (2, 1):
        plan = distributed(_of_type(policy), replicas=replicas).plan(data.x, data.y).splitlines()
        found = [line for line in plan if "rounding of" in line or "overflow" in line]
        assert found == [f"  note: {note}" for note in (notes if replicas == 2 else ())]


def test_the_plan_notes_casts_to_types_of_few_bits():
    def loss(y, predicted):
        return tf.reduce_mean(tf.square(tf.cast(y - predicted, tf.bfloat16)))

    half = Does(lambda x: tf.cast(tf.matmul(tf.cast(x, tf.float16), tf.ones((5, 5), tf.float16)), x.dtype), "half")
    model, data = stacked(keras.Input((5,)), half, keras.layers.Dense(1), loss=loss, jit_compile=False), dense_data(8)
    plan = distributed(model).plan(data.x, data.y)
    assert f"note: {ROUNDING}float16: half" in plan and f"note: {ROUNDING}bfloat16: the step itself" in plan


def test_the_plan_notes_data_of_unknown_length():
    data = dense_data(8)
    batches = tf.data.Dataset.from_tensors((data.x, data.y)).repeat(2)

    def generator():
        yield from [(data.x, data.y)] * 3

    for given, is_noted in [
        (batches, False), (batches.filter(lambda *_: True), True), (generator(), True),
        (Batches(lambda index: (data.x, data.y), 2), False), (Batches(lambda index: (data.x, data.y), None), True),
    ]:  # fmt: skip
        plan = distributed(_of_type("float32")).plan(given)
        assert ("not exact: of data of unknown length, one device counts optimizer.iterations" in plan) is is_noted
