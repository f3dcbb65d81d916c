"""`strategy="auto"` for a Keras model: what is counted of its step, what the plan says, and equal weights."""

import argparse
import re
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec, Strategy
from autodist_core.auto import Auto, StepTimes
from autodist_core.auto.of_step import ELEMENT, profile_of
from autodist_core.auto.profiles import FORWARD
from autodist_core.auto.trial import trial_of
from autodist_core.errors import CaptureError, StrategyError
from autodist_core.step.index import StepIndex
from autodist_keras import DistributedModel, command_line
from tests.auto.test_predictions import machines
from tests.support.graphs import captured
from tests.support.models import BY_NAME, stacked
from tests.support.training import assert_equal_training, seeded

EXAMPLES = 48
X, Y = np.zeros((EXAMPLES, 64), "float32"), np.zeros((EXAMPLES, 8), "float32")


def dense() -> keras.Model:
    layers = keras.layers
    widths = (512, 600, 8)
    return stacked(keras.Input((64,)), *(layers.Dense(width, name=f"dense{width}") for width in widths))


def test_a_profile_counts_the_products_of_a_captured_step():
    item, spec = captured(seeded(dense), X, Y).item, machines(2)
    found = profile_of(item, spec, EXAMPLES)
    kernels = {"dense512": 64 * 512, "dense600": 512 * 600, "dense8": 600 * 8}
    # Three products for each kernel, and two for that of the first layer: nothing needs its inputs' gradients.
    products = 6 * sum(kernels.values()) - 2 * kernels["dense512"]
    others = found.operations - products
    assert 0 < others < 40 * ELEMENT * (512 + 600 + 8), "a few operations read each layer's results"
    ready = [found.ready[f"{name}/kernel"] for name in reversed(kernels)]
    assert FORWARD - 0.05 < ready[0] < ready[1] < ready[2] <= 1, "the last layer's gradient is there first"
    # Tests train in float64.
    assert found.factors == {f"{name}/kernel": 8 * sum(shape) for name, shape in (
        ("dense512", (64, 512)), ("dense600", (512, 600)), ("dense8", (600, 8)),
    )}  # fmt: skip
    assert found.seen and not found.rows and not profile_of(item, ResourceSpec.local(cpus=2), EXAMPLES).factors


def test_a_profile_has_the_rows_of_tables_and_the_operations_of_convolutions():
    reference = BY_NAME["embedding"]
    model = seeded(reference.build)
    model.compile(**reference.compile_arguments("adam"))
    found = profile_of(captured(model, reference.data().x, reference.data().y).item, machines(2), EXAMPLES)
    assert found.rows == {"wide/embeddings": 7.0, "narrow/embeddings": 7.0}, "4 of one input and 3 of the other"
    assert found.slots == set(found.rows)
    layers = keras.layers
    made = seeded(lambda: stacked(
        keras.Input((10, 10, 3)), layers.Conv2D(16, 3, name="conv"), layers.GlobalAveragePooling2D()
    ))  # fmt: skip
    item = captured(made, np.zeros((EXAMPLES, 10, 10, 3), "float32"), np.zeros((EXAMPLES, 16), "float32")).item
    forward = 2 * 8 * 8 * 16 * 3 * 3 * 3
    counted = profile_of(item, machines(2), EXAMPLES).operations - 2 * forward
    assert 0 < counted < 40 * ELEMENT * 8 * 8 * 16, "forward, and the gradient of the kernel"


def test_the_plan_shows_what_is_predicted_and_what_lost():
    with DistributedModel(seeded(dense), {"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]},
                          strategy="auto") as dm:  # fmt: skip
        before = dm.model.get_weights()
        assumed, seen = dm.plan(), dm.plan(X, Y)
        assert all(map(np.array_equal, before, dm.model.get_weights())), "copies were measured"
        assert "predicted for 32 examples (no batch is known) = compute" in assumed
        assert "layers as their variables are, 20 Gflop/s" in assumed
        assert seen.splitlines()[0].endswith(", Auto @ 2 replicas")
        assert f"predicted for {EXAMPLES} examples = compute" in seen
        assert "auto: measured: a step of one replica; taken: operations counted, network_bandwidth" in seen
        lost = next(line for line in seen.splitlines() if "auto: next is" in line)
        assert lost.endswith("ms more on 10.0.0.1's link") or lost.endswith("as fast")
        assert f"predicted for {EXAMPLES} examples" in dm.plan(X[:8], Y[:8]), "what a plan has shown is carried out"


def test_what_was_measured_of_one_replica_is_predicted_of_all():
    item, spec = captured(seeded(dense), X, Y).item, machines(2)
    bytes_updated = sum(each.byte_size for each in item.trainable_var_op_to_var.values())
    ends = dict.fromkeys(StepIndex.of(item).nodes, 0.5)
    item.found[StepTimes] = StepTimes(EXAMPLES, compute=0.3, update=0.004, ends=ends)
    found = trial_of(item, spec, 2 * EXAMPLES)
    assert found.compute == {"10.0.0.1": pytest.approx(0.3), "10.0.0.2": pytest.approx(0.3)}
    assert set(found.charging.model.ready.values()) == {0.5}
    assert [each.update * bytes_updated for each in found.charging.cluster.machines] == pytest.approx([0.004, 0.004])
    two = trial_of(item, ResourceSpec.local(cpus=2), EXAMPLES)
    assert two.compute["localhost"] == pytest.approx(0.3), "half as many examples, on half of the processors"


@pytest.mark.parametrize("function", [tf.py_function, partial(tf.numpy_function, stateful=False)])
def test_a_step_that_calls_python_is_not_measured(function):
    class Counted(keras.layers.Layer):
        calls = 0

        def call(self, x):
            def count(value):
                Counted.calls += 1
                return value

            return keras.ops.reshape(function(count, [x], x.dtype), keras.ops.shape(x))

    with DistributedModel(seeded(lambda: stacked(keras.Input((64,)), Counted(), keras.layers.Dense(8))),
                          ResourceSpec.local(cpus=2), strategy="auto") as dm:  # fmt: skip
        assert "auto: measured: nothing; taken: operations counted, 20 Gflop/s" in dm.plan(X, Y) and not Counted.calls


def test_what_was_chosen_can_be_saved_and_passed_again():
    spec = ResourceSpec.local(cpus=2)
    item = captured(seeded(dense), X, Y).item
    made = Auto().build(item, spec)
    with DistributedModel(seeded(dense), spec, strategy=Strategy.deserialize(made.serialize())) as dm:
        plan = dm.plan(X, Y)
        assert plan.splitlines()[0] == f"strategy {made.id} @ 2 replicas" and "auto chose Parallax" in plan
        dm.fit(X, Y, verbose=0)
    with pytest.raises(StrategyError, match=r"unknown strategy 'Auto'\. Did you mean 'auto'"):
        DistributedModel(seeded(dense), spec, strategy="Auto")


@pytest.mark.parametrize("name", ["dense", "embedding"])
def test_weights_are_those_of_one_device(name):
    assert_equal_training(BY_NAME[name], strategy=Auto(trials=2), replicas=3)


def test_the_fastest_of_those_that_were_tried_is_carried_out():
    model = seeded(dense)
    with DistributedModel(model, ResourceSpec.local(cpus=2), strategy=Auto(trials=3), share_memory=False) as dm:
        assert "auto tried" not in dm.plan(X, Y)
        dm.fit(X, Y, verbose=0)
        plan = dm.plan(X, Y)
    (note,) = re.findall("note: auto tried strategies on the first batch: (.*)", plan)
    tried = {name: float(ms) for name, ms in (each.removesuffix(" ms").rsplit(" ", 1) for each in note.split(", "))}
    assert len(tried) == 3 and min(tried.values()) > 0
    (chosen,) = re.findall("note: auto chose (.*) of ", plan)
    assert tried[chosen] == min(tried.values())


def test_explain_has_what_was_predicted_beside_what_was_measured():
    model = seeded(dense)
    distributed = DistributedModel(model, ResourceSpec.local(cpus=2), strategy="auto")
    distributed.fit(X, Y, batch_size=EXAMPLES // 2, epochs=2, verbose=0)
    report = distributed.explain(steps=4)
    (line,) = (line for line in report.splitlines() if "auto predicted" in line)
    found = re.search(r"predicted ([0-9.]+) ms = compute ([0-9.]+) \(measured ([0-9.]+)\) \+ wire .*: \w+ is", line)
    whole, compute, measured = map(float, found.groups())
    parts = report.table.parts["localhost"]
    assert 0 < compute <= whole and measured == round(1e3 * (parts["compute"] + parts["TensorFlow"]), 1)
    assert "predicted" not in DistributedModel(model, ResourceSpec.local(cpus=2), strategy="PS").plan(X, Y)


def test_a_command_compares_all_strategies_for_machines_that_are_not_there(tmp_path, capsys):
    cluster, model, parser = tmp_path / "cluster.yml", tmp_path / "model.keras", argparse.ArgumentParser()
    cluster.write_text("nodes: [{address: 10.9.0.1, chief: true}, {address: 10.9.0.2}]\nssh: {username: me}")
    seeded(dense).save(model)
    command_line.add_arguments(parser)
    arguments = [str(cluster), "--model", str(model)]
    assert command_line.run(parser.parse_args([*arguments, "--compare", "48"])) == 0
    first, _, *rows, assumed = capsys.readouterr().out.splitlines()
    assert first == "predicted ms of a step of 48 examples on 2 replicas" and "operations counted" in assumed
    steps = [float(row[32:41]) for row in rows]
    assert steps == sorted(steps) and {"Parallax", "PS", "Sharded"} <= {row.split()[0] for row in rows}
    with pytest.raises(StrategyError, match=r"--compare 0: expected .* at least 1"):
        command_line.run(parser.parse_args([*arguments, "--compare", "0"]))
    stacked(keras.Input((None, 4)), keras.layers.Dense(2)).save(model)
    with pytest.raises(StrategyError, match=r"--compare needs .* \(None, None, 4\)"):
        command_line.run(parser.parse_args([*arguments, "--compare", "48"]))


def test_a_batch_that_fails_is_named_by_the_training():
    model = seeded(lambda: stacked(keras.Input((3,), dtype="int32"), keras.layers.Embedding(4, 2, name="table")))
    with DistributedModel(model, ResourceSpec.local(cpus=2), strategy=Auto(trials=2)) as dm:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)in layer 'table'.*The step changed nothing"):
            dm.fit(np.full((8, 3), 9), np.zeros((8, 3, 2)), verbose=0)
        dm.fit(np.ones((8, 3)), np.zeros((8, 3, 2)), verbose=0)


def test_a_step_of_a_fixed_batch_size_is_refused_in_the_words_of_every_strategy():
    fixed = keras.layers.Lambda(lambda x: tf.reshape(x, [16, 6]))
    model = seeded(lambda: stacked(keras.Input((6,)), fixed, keras.layers.Dense(6)))
    auto = DistributedModel(model, ResourceSpec.local(cpus=2), strategy=Auto(trials=2))
    with auto as dm, pytest.raises(CaptureError, match="fixes how many examples a batch has"):
        dm.fit(np.zeros((16, 6)), np.zeros((16, 6)), batch_size=16, verbose=0)


def test_a_later_program_takes_the_choice_of_an_earlier_one(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("AUTODIST_CACHE", str(tmp_path))

    def plan(size=EXAMPLES, trials=0):
        with DistributedModel(seeded(dense), ResourceSpec.local(cpus=2), strategy=Auto(trials=trials)) as dm:
            dm.fit(X[:size], Y[:size], batch_size=size, verbose=0)
            return dm.plan().splitlines()

    first, (file,) = plan(), (tmp_path / "choices").iterdir()
    note = f"  note: auto: chosen by an earlier program; delete {file} to choose again"
    assert note not in first and [line for line in plan() if line != note] == first
    assert "earlier" not in str(plan(9)) and "earlier" not in str(plan(trials=2))
    assert "auto tried strategies" in (tried := str(plan(trials=2))) and "earlier" in tried
    file.write_text("{")
    assert note not in plan() and f"{file} cannot be read" in caplog.text
