"""`verify` compares all replicas with one device and leaves the model as it was."""

import re
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_same, named
from tests.support.layers import Does
from tests.support.made_data import Batches
from tests.support.models import BY_NAME, DENSE, dense_data, ready, stacked
from tests.support.plans import without_memory
from tests.support.steps import OwnStep
from tests.support.training import compiled, distributed, seeded


def test_a_table_of_every_variable_and_the_state_as_before():
    model, data = compiled(DENSE), dense_data()
    before = named(model.weights)
    with distributed(model, replicas=3) as front:
        table = front.verify(data.x, data.y, steps=2)
    assert table.startswith("2 steps") and table.endswith(
        "\nverdict: equal to one device, up to rounding, in the 19 variables of the table; metrics and results are not "
        "compared")
    assert all(weight.path.partition("/")[2] in table for weight in model.trainable_weights)
    assert_same(before, named(model.weights), tolerance=0.0)
    assert int(model.optimizer.iterations) == 0


def _with(*layers) -> keras.Model:
    model = keras.Sequential([keras.Input((5,)), *layers, *seeded(DENSE.build).layers], name="with_layers")
    return ready(model, **DENSE.compile_arguments("sgd"))


def _unknown(y, predicted):
    """A sum, by an operation that the analysis does not know: it counts as a mean."""
    return tf.reduce_sum(tf.square(tf.raw_ops.Reverse(tensor=y - predicted, dims=[False, True])))


@pytest.mark.parametrize("layers", [(), (keras.layers.Dropout,)], ids=["plain", "dropout"])
def test_what_nothing_explains_is_named(layers):
    model, data = ready(_with(*(layer(0.1) for layer in layers)), "sgd", _unknown, jit_compile=False), dense_data(16)
    with distributed(model) as front, pytest.raises(ValueError, match=r"differs from one device in dense/first/kernel"):
        front.verify(data.x, data.y)


ACCEPTED = r"verdict: accepted: \d+ of \d+ variables differ by more than rounding, and the notes above say why"
EQUAL = "verdict: equal to one device, up to rounding, in the "


def test_statistics_of_each_replica_are_said_below_the_table():
    note = (
        "not exact: batch statistics are each replica's own in norm; moving averages are combined (synchronized=True: "
        "the whole batch's)"
    )
    data, model = dense_data(), _with(keras.layers.BatchNormalization(name="norm"))
    before = named(model.weights)
    with distributed(model, replicas=3) as front:
        assert f"\n  note: {note}\n" in front.plan()
        *rows, said, verdict = front.verify(data.x, data.y, steps=2).splitlines()
        assert said == f"  note 1: {note}" and re.fullmatch(ACCEPTED, verdict)
        assert re.fullmatch(r"  dense/first/kernel +\S+  note 1", next(row for row in rows if "first/kernel" in row))
        assert f"\n  note: {note}\n" in front.plan()
    assert_same(before, named(model.weights), tolerance=0.0)


DRAWING = {
    "dropout": lambda: keras.layers.Dropout(0.5, name="layer"),
    "noise": lambda: keras.layers.GaussianNoise(0.5, name="layer"),
    "dropout of features": lambda: keras.layers.Dropout(0.5, noise_shape=(1, 5), name="layer"),
    "an explicit seed": lambda: _perturbed(lambda x: tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=x.dtype)),
    "time first": lambda: _perturbed(lambda x: tf.transpose(keras.random.uniform((5, tf.shape(x)[0]), seed=3))),
}


def _perturbed(by) -> keras.layers.Layer:
    return Does(lambda x: x + keras.ops.cast(by(x), x.dtype), "layer")


@pytest.mark.quick("dropout")
@pytest.mark.parametrize("name", DRAWING)
def test_replicas_draw_what_one_device_draws_to_be_compared(name: str):
    data, losses = dense_data(), []
    for verifies in (True, False):
        keras.utils.set_random_seed(3)
        with distributed(_with(DRAWING[name]()), replicas=3) as front:
            if verifies:
                table = front.verify(data.x, data.y, steps=2)
                assert "note" not in table and EQUAL in table
                assert "draws its own random numbers in layer" in front.plan(data.x, data.y)
            losses += front.fit(data.x, data.y, shuffle=False, verbose=0).history["loss"]
    assert losses[0] == losses[1], "verify leaves no trace"


def test_xla_draws_other_numbers_and_verify_compares_without_it():
    data, model = dense_data(), ready(_with(keras.layers.Dropout(0.5)), "sgd", "mse", jit_compile=True)
    with distributed(model, replicas=2) as front:
        assert EQUAL in front.verify(data.x, data.y)
    assert model.jit_compile


def test_numbers_that_a_loop_over_the_examples_draws_are_each_replicas_own():
    generator = keras.random.SeedGenerator(1)
    drawn = _perturbed(lambda x: tf.map_fn(lambda row: keras.random.normal((5,), seed=generator, dtype=row.dtype), x))
    data, model = dense_data(), _with(drawn)
    with distributed(model) as front:
        table = front.verify(data.x, data.y)
    note = "note 1: not exact: each replica draws its own random numbers in layer"
    assert note in table and "verdict: accepted" in table


def _heads(loss):
    """A head with draws that TensorFlow cannot repeat, and another one."""
    x = keras.Input((5,))
    drawn = _perturbed(lambda x: tf.random.normal(tf.shape(x), seed=4))(keras.layers.Dense(3, name="first")(x))
    model = keras.Model(x, [keras.layers.Dense(1, name="a")(drawn), keras.layers.Dense(1, name="b")(x)])
    return ready(model, "sgd", ["mse", loss], jit_compile=False)


def test_a_note_excuses_only_the_variables_that_it_can_reach():
    data = dense_data(16)
    with distributed(_heads("mse")) as front:
        rows = front.verify(data.x, [data.y, data.y]).splitlines()
        by = {row.split()[0]: row.endswith("  note 1") for row in rows if "/" in row and "optimizer" not in row}
        assert by["a/kernel"] and not by["b/kernel"] and re.fullmatch(ACCEPTED, rows[-1])
    expected = (
        r"differs from one device in b/kernel \([^;]*; b/bias [^;]*\. The plan says: .* "
        r"No note explains it: not exact: each replica"
    )
    with distributed(_heads(_unknown)) as front, pytest.raises(ValueError, match=expected):
        front.verify(data.x, [data.y, data.y])


class OfNodes(keras.layers.Layer):
    """Looks examples up in a table that it normalizes: all replicas have the whole table."""

    def __init__(self):
        super().__init__()
        self.table = tf.constant(np.random.default_rng(1).normal(size=(9, 4)))
        self.norm = keras.layers.BatchNormalization(name="norm")

    def build(self, shape):
        self.norm.build(self.table.shape)

    def call(self, x, training=None):
        chosen = tf.cast(tf.abs(x[:, 0]) * 10, tf.int32) % 9
        return tf.gather(self.norm(self.table, training=training), chosen)


def test_statistics_of_a_constant_are_not_said_to_be_each_replicas_own():
    data, model = dense_data(), stacked(keras.Input((5,)), OfNodes(), keras.layers.Dense(1), jit_compile=False)
    with distributed(model, replicas=3) as front:
        table = front.verify(data.x, data.y, steps=2)
    assert "batch statistics" not in table
    assert "verdict: equal to one device, up to rounding" in table


def test_layers_that_have_nothing_of_their_own_explain_nothing():
    data, frozen = dense_data(), keras.layers.BatchNormalization()
    model = _with(frozen, keras.layers.Dropout(0.0), keras.layers.BatchNormalization(synchronized=True))
    frozen.trainable = False
    model.compile(**DENSE.compile_arguments("sgd"))
    with distributed(model) as front:
        for text in (front.plan(), front.verify(data.x, data.y), front.plan()):
            assert "each replica" not in text


def test_a_single_replica_has_nothing_of_its_own():
    data = dense_data()
    with distributed(_with(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)), replicas=1) as front:
        for text in (front.plan(), front.verify(data.x, data.y)):
            assert "each replica" not in text


def _pydataset(data):
    def shuffled(index):
        """Gives other rows each time it is asked."""
        rows = np.random.default_rng(len(seen)).permutation(len(data.x))[: 4 + index]
        seen.append(index)
        return data.x[rows], data.y[rows]

    seen = []
    return Batches(shuffled, 5), seen


def test_a_dataset_gives_each_step_a_batch_and_both_ways_the_same():
    model, data = compiled(DENSE), dense_data()
    shuffled = tf.data.Dataset.from_tensor_slices((data.x, data.y)).shuffle(22).batch(5)
    before = named(model.weights)
    with distributed(model, replicas=3) as front:
        assert front.verify(shuffled, steps=9).startswith("5 steps")
        batches, seen = _pydataset(data)
        assert front.verify(batches, steps=2).startswith("2 steps")
        assert seen[:2] == [0, 1]
    assert_same(before, named(model.weights), tolerance=0.0)


class Looks(OwnStep):
    """Unpacks what it is given, and notes its form."""

    seen: ClassVar[list] = []

    def train_step(self, data):
        self.seen.append(keras.tree.map_structure(lambda leaf: "leaf", data))
        x, y = data if isinstance(data, tuple) else (data, 0.0)
        return super().train_step((x, y))


@pytest.mark.parametrize("arguments", [1, 2])
def test_a_custom_step_gets_what_fit_gives_it(arguments: int):
    given = dense_data()
    data = (given.x, given.y)[:arguments]
    model = ready(seeded(Looks), "adam", jit_compile=False)
    Looks.seen.clear()
    with distributed(model) as front:
        table = front.verify(*data)
        assert "optimizer/" in table
        front.fit(*data, epochs=1, verbose=0)
    assert set(map(str, Looks.seen)) == {str("leaf" if arguments == 1 else ("leaf", "leaf"))}


def test_an_optimizer_of_a_part_of_the_model_is_built_for_that_part_only():
    reference = BY_NAME["adversarial"]
    data, model = reference.data(), ready(seeded(reference.build), **reference.compile_arguments("adam"))
    with distributed(model) as front:
        front.verify(data.x, data.y)
    assert 0 < len(model.critic_optimizer._trainable_variables) < len(model.trainable_variables)


def test_the_plan_takes_a_dataset_as_well():
    data = dense_data()
    with distributed(compiled(DENSE)) as front:
        expected = without_memory(front.plan(data.x, data.y))
        batches = tf.data.Dataset.from_tensor_slices((data.x, data.y)).batch(4)
        assert without_memory(front.plan(batches)) == expected
        assert without_memory(front.plan(_pydataset(data)[0])) == expected


REFUSED = {
    "steps=0": (lambda verify, data: verify(data.x, data.y, steps=0), ValueError,
                "verify(steps=0): expected a whole number of steps, at least 1."),
    "steps=1.5": (lambda verify, data: verify(data.x, data.y, steps=1.5), ValueError,
                  "verify(steps=1.5): expected a whole number of steps, at least 1."),
    "steps=True": (lambda verify, data: verify(data.x, data.y, steps=True), ValueError,
                   "verify(steps=True): expected a whole number of steps, at least 1."),
    "weights for steps": (lambda verify, data: verify(data.x, data.y, data.x[:, 0]), ValueError,
                          "verify(x, y, ...): the third argument is the number of steps, at least 1. Received a "
                          "ndarray. Weights of the examples have a name: verify(x, y, sample_weight=...)."),
    "nothing": (lambda verify, data: verify(None), TypeError,
                "verify(x, y): expected the arrays of one batch, or batches in a form that fit takes, such as a "
                "tf.data.Dataset, a keras.utils.PyDataset or a generator. Received: x of type NoneType, y of type "
                "NoneType."),
    "no examples": (lambda verify, data: verify(data.x[:0], data.y[:0]), ValueError,
                    "verify(x, y): the batch has no examples; at least 1 is needed."),
    "not a number": (lambda verify, data: verify(data.x * np.nan, data.y), ValueError,
                     "on one device first/kernel, first/bias, second/kernel are not finite after 3 steps, so there is "
                     "nothing to compare. Verify with data and a learning rate with which the plain model trains."),
    "dataset and targets": (lambda verify, data: verify(_pydataset(data)[0], data.y), ValueError,
                            "verify(x, y): targets come with the batches of a Batches; leave y out."),
    "no batches": (lambda verify, data: verify(tf.data.Dataset.from_tensors((data.x, data.y)).take(0)), ValueError,
                   "verify(x): the tf.data.Dataset has no batches; at least 1 is needed."),
    "no targets": (lambda verify, data: verify(data.x), ValueError,
                   "verify: model 'dense' is compiled with a loss, which needs targets. "
                   "Pass them, verify(x, y), or a dataset whose batches have them."),
    "iterator": (lambda verify, data: verify(iter([(data.x, data.y)])), TypeError,
                 "verify(x, y): expected the arrays of one batch, or batches in a form that fit takes, such as a "
                 "tf.data.Dataset, a keras.utils.PyDataset or a generator. Received: x of type list_iterator, y of "
                 "type NoneType."),
}  # fmt: skip


def test_what_cannot_be_compared_is_refused():
    model = compiled(DENSE)
    before = named(model.weights)
    with distributed(model) as front:
        for name, (call, kind, message) in REFUSED.items():
            with pytest.raises(kind) as caught:
                call(front.verify, dense_data())
            assert str(caught.value) == message, name
            assert_same(before, named(model.weights), tolerance=0.0)


def _biased_norm() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([
        keras.Input((6,)), layers.Dense(4, name="biased"), layers.BatchNormalization(synchronized=True, name="norm"),
        layers.Dense(1, name="head"),
    ])  # fmt: skip


def _attention() -> keras.Model:
    inputs = keras.Input((6,))
    rows = keras.layers.Reshape((3, 2))(inputs)
    mixed = keras.layers.MultiHeadAttention(2, 4, name="attention")(rows, rows)
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(keras.layers.Flatten()(mixed)))


@pytest.mark.quick("_biased_norm-biased/bias-adam")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("make", "bias"), [(_biased_norm, "biased/bias"), (_attention, "attention/key/bias")])
def test_a_gradient_that_is_rounding_alone_is_said_to_be(make, bias: str, optimizer: str, float64: None):
    model, draw = ready(seeded(make), optimizer, "mse"), np.random.default_rng(0)
    before = named(model.weights)
    with distributed(model) as front:
        table = front.verify(draw.normal(size=(16, 6)), draw.normal(size=(16, 1)))
    (line,) = [line for line in table.splitlines() if line.split()[0] == bias]
    assert "rounding: on one device" in line
    (kernel,) = [line for line in table.splitlines() if line.split()[0] == "head/kernel"]
    assert "rounding" not in kernel
    assert_same(before, named(model.weights), tolerance=0.0)
