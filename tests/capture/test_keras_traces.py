"""What is captured of a Keras model's step, and that the capture alone is enough to train."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.kernel.analysis.ownership import slots
from autodist_core.kernel.placement.arrangement import optimizer_state
from autodist_core.runtime.local.session import LocalSession
from autodist_core.step.index import StepIndex
from autodist_core.strategy import PS, AllReduce
from tests.capture.steps import DATA, compiled, gradients_of, stepping
from tests.kernel.graphs import machine, placed
from tests.support.compare import assert_same, named
from tests.support.graphs import captured
from tests.support.models import BY_NAME, Data, ready, stacked
from tests.support.optimizers import make_optimizer
from tests.support.steps import OwnStep
from tests.support.training import assert_equal_training, distributed, seeded

layers = keras.layers


def _everything() -> keras.Model:
    """Rows, statistics, random numbers and a metric."""
    ids, x = keras.Input((2,), dtype="int32", name="ids"), keras.Input((3,), name="x")
    rows = layers.Flatten(name="flat")(layers.Embedding(5, 2, name="table")(ids))
    hidden = layers.BatchNormalization(name="norm")(layers.Concatenate(name="both")([rows, x]))
    hidden = layers.Dropout(0.3, seed=3, name="drop")(hidden)
    model = keras.Model([ids, x], layers.Dense(1, name="out")(hidden), name="everything")
    return ready(model, keras.optimizers.Adam(0.01, name="adam"), "mse", metrics=["mae"], jit_compile=False)


def _everything_data(examples: int = 7) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(13)
    ids = random.integers(0, 5, (examples, 2)).astype("int32")
    return [ids, random.normal(size=(examples, 3))], random.normal(size=(examples, 1))


@pytest.fixture(scope="module")
def item() -> GraphItem:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    return captured(seeded(_everything), *_everything_data()).item


def _seed(item: GraphItem) -> str:
    (name,) = (variable.name for variable in item.variables if variable.name.endswith("/seed_generator_state"))
    return name


def test_names_kinds_and_aggregations(item: GraphItem):
    found = {variable.name: variable for variable in item.variables}
    assert {name for name, variable in found.items() if variable.trainable} == {
        "table/embeddings", "norm/gamma", "norm/beta", "out/kernel", "out/bias"
    }  # fmt: skip
    assert [name for name, variable in found.items() if variable.is_sparse] == ["table/embeddings"]
    kinds = {name: variable.kind for name, variable in found.items() if not variable.trainable}
    assert kinds["norm/moving_mean"] == kinds["norm/moving_variance"] == "model"
    assert [name for name, kind in kinds.items() if kind == "seed"] == [_seed(item)]
    assert kinds["optimizer/adam/iteration"] == kinds["optimizer/adam/learning_rate"] == "optimizer"
    metrics = [variable for variable in item.variables if variable.kind == "metric"]
    assert len(metrics) == 4 and {"metric/loss/total", "metric/loss/count"} < {v.name for v in metrics}
    assert {variable.aggregation for variable in metrics} == {"sum"}
    assert all(variable.name.startswith("optimizer/") == (variable.kind == "optimizer") for variable in item.variables)


def test_who_writes_what(item: GraphItem):
    step = StepIndex(item)
    assert {"norm/moving_mean", "norm/moving_variance", _seed(item)} < step.written_by_compute
    assert not step.written_by_compute & set(step.trained)
    assert optimizer_state(step) == {"optimizer/adam/iteration", "optimizer/adam/learning_rate"}
    assert set(slots(step).values()) == set(step.trained)
    assert len(slots(step)) == 2 * len(step.trained)


def test_gradients_are_apart_and_weighted_by_the_scaled_loss(item: GraphItem):
    assert {gradient.weighted for gradient in item.gradients} == {True}
    assert [gradient.variable for gradient in item.gradients if gradient.indices] == ["table/embeddings"]
    step = StepIndex(item)
    bias = next(g for g in item.gradients if g.variable == "out/bias")
    others = {g.values.removesuffix(":0") for g in item.gradients if g is not bias}
    assert not step.cone([bias.values.removesuffix(":0")]) & others
    ops = {step.nodes[name].op for name in step.cone([bias.values.removesuffix(":0")])}
    assert "IdentityN" not in ops


@pytest.mark.parametrize("scaled", [False, True])
def test_a_custom_step_is_weighted_as_it_scales(scaled: bool):
    def step(model, data):
        model.optimizer.apply(gradients_of(model, data, scaled), model.trainable_variables)

    assert {gradient.weighted for gradient in captured(stepping(step)(), DATA.x, DATA.y).item.gradients} == {scaled}


def test_two_optimizers_are_two_occurrences():
    reference = BY_NAME["adversarial"]
    model = ready(seeded(reference.build), make_optimizer("adam"), make_optimizer("momentum"), jit_compile=False)
    data = reference.data()
    found = captured(model, data.x, data.y).item
    by_occurrence = {occurrence: [] for occurrence in (0, 1)}
    for gradient in found.gradients:
        by_occurrence[gradient.occurrence].append(gradient.variable)
    assert all(name.startswith("c") for name in by_occurrence[0]) and len(by_occurrence[0]) == 4
    assert all(name.startswith("g") for name in by_occurrence[1]) and len(by_occurrence[1]) == 4
    step = StepIndex(found)
    assert set(step.update_of.values()) == {0, 1} and step.occurrences == (0, 1)
    assert optimizer_state(step) == {
        f"optimizer/{name}/{part}" for name in ("adam", "momentum") for part in ("iteration", "learning_rate")
    }


def test_other_modes_have_no_update():
    model = seeded(_everything)
    x, y = _everything_data()
    model.train_on_batch(x, y)
    tested, predicted = captured(model, x, y, "test").item, captured(model, x, None, "predict").item
    for found in (tested, predicted):
        assert not found.gradients and not StepIndex(found).update_of
        assert not any(v.trainable or (v.kind == "optimizer" and v.handle) for v in found.variables)
    assert predicted.concat_outputs and not tested.concat_outputs
    assert {v.kind for v in tested.variables if v.name in StepIndex(tested).written_by_compute} == {"metric"}
    assert not StepIndex(predicted).written_by_compute


def test_a_batch_axis_is_open_and_the_others_are_known(item: GraphItem):
    assert [(tensor.dtype, tensor.shape) for tensor in item.inputs] == [
        ("int32", (None, 2)), ("float64", (None, 3)), ("float64", (None, 1))
    ]  # fmt: skip


def _train(found: GraphItem, values: dict, arrays: list, builder, replicas: int) -> dict[str, np.ndarray]:
    session = LocalSession(placed(found, builder, machine(cpus=replicas)))
    step = session.add(found)
    session.load({name: value for name, value in values.items() if name in session.known})
    for stop in (7, 4, 1):
        step([array[:stop] for array in arrays], stop)
    result = session.read(session.known)
    session.close()
    return result


@pytest.mark.parametrize("builder", [AllReduce(chunk_size=2), PS()], ids=["AllReduce", "PS"])
def test_bytes_train_to_the_same_numbers(builder):
    """The capture holds everything: no model and no Keras is needed after it."""
    model = seeded(_everything)
    x, y = _everything_data()
    whole = captured(model, x, y)
    values = {entry.spec.name: entry.tf_variable.numpy() for entry in whole.entries}
    again = GraphItem.deserialize(whole.item.serialize())
    assert again == whole.item and str(again) == str(whole.item)
    arrays = [*x, y]
    first, second = (_train(found, values, arrays, builder, 2) for found in (whole.item, again))
    assert_same(first, second, tolerance=0.0)
    assert np.abs(first["out/kernel"] - values["out/kernel"]).max() > 1e-3
    assert first["optimizer/adam/iteration"] == 3


def test_a_custom_step_from_bytes_equals_one_device():
    model, plain = compiled(OwnStep), compiled(OwnStep)
    whole = captured(model, DATA.x, DATA.y)
    values = {entry.spec.name: entry.tf_variable.numpy() for entry in whole.entries}
    found = _train(GraphItem.deserialize(whole.item.serialize()), values, [DATA.x[:7], DATA.y[:7]], AllReduce(), 3)
    for stop in (7, 4, 1):
        plain.fit(DATA.x[:stop], DATA.y[:stop], batch_size=stop, verbose=0)
    expected = named(plain.trainable_variables)
    assert_same({name.partition("/")[2]: value for name, value in expected.items()},
                {v.name: found[v.name] for v in whole.item.variables if v.trainable})  # fmt: skip


def test_words_come_with_their_table():
    def build() -> keras.Model:
        words = keras.Input((2,), dtype="string", name="words")
        ids = layers.StringLookup(vocabulary=["red", "green"], name="lookup")(words)
        rows = layers.Flatten(name="flat")(layers.Embedding(3, 2, name="table")(ids))
        model = keras.Model(words, layers.Dense(1, name="out")(rows), name="worded")
        return ready(model, keras.optimizers.SGD(0.5, name="sgd"), "mse", jit_compile=False)

    words = tf.constant(np.array(["red", "green", "pink", "", "red"])[:, None].repeat(2, axis=1))
    y = np.linspace(-1.0, 1.0, 5)[:, None]
    found = captured(seeded(build), words, y).item
    (table,) = found.tables
    nodes = {node.name: node for node in found.graph_def.node}
    assert sorted(tf.make_ndarray(nodes[table.keys].attr["value"].tensor).tolist()) == [b"green", b"red"]
    assert_equal_training(build, data=Data(words, y), batch_size=3, epochs=1)


class Draws(layers.Layer):
    """Adds noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(name="draws")
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, x):
        return x + self.generator.normal(tf.shape(x), dtype=x.dtype)

    def compute_output_shape(self, shape):
        return shape


def test_a_layer_of_mixed_precision_casts_the_rows_of_its_table_and_not_the_table():
    table = layers.Embedding(50, 4, dtype="mixed_bfloat16", name="table")
    model = stacked(keras.Input((2,), dtype="int32"), table, layers.Flatten(), layers.Dense(1, dtype="float64"))
    step = StepIndex.of(captured(model, np.zeros((3, 2), "int32"), np.zeros((3, 1))).item)
    touching = [name for name in step.touching["table/embeddings"] if name in step.alive and not step.is_update(name)]
    assert [step.nodes[name].op for name in touching] == ["ResourceGather"]
    (cast,) = (step.nodes[name] for name in step.readers[touching[0]])
    assert cast.op == "Cast" and cast.attr["DstT"].type == tf.bfloat16.as_datatype_enum


def test_a_generators_stream_is_each_replicas_own():
    model = seeded(lambda: stacked(keras.Input((2,), name="x"), Draws(), name="noisy", jit_compile=False))
    found = captured(model, np.zeros((4, 2)), None, "predict").item
    assert [variable.kind for variable in found.variables if variable.handle] == ["seed"]
    alone = model.predict(np.zeros((2, 2)), verbose=0)
    model.layers[-1].generator.reset_from_seed(3)
    with distributed(model) as front:
        drawn = front.predict(np.zeros((4, 2)), verbose=0)
    np.testing.assert_array_equal(drawn[:2], alone)
    assert not np.isclose(drawn[:2], drawn[2:]).any()
