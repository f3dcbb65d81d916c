"""Auto: what it tries, what it takes, and what it says."""

import time

import pytest

from autodist_core import GraphItem, ResourceSpec, Strategy, StrategyCompiler, Variable
from autodist_core.auto import NAMES, Auto
from autodist_core.auto.choosing import ALLOWED, USUAL, Trial, best
from autodist_core.auto.improving import improved
from autodist_core.errors import StrategyError
from autodist_core.plan import Plan, plan_table
from autodist_core.strategy import BUILDERS, AllReduce, Parallax, PartitionedPS, resolve
from autodist_core.strategy.written import read_builder, written
from tests.auto.test_predictions import machines
from tests.planning import cases, goldens

CLUSTERS = {
    **{name: cases.cluster(name) for name in cases.CLUSTERS}, "two_machines": machines(2),
    "one_fast_link": ResourceSpec({"nodes": [
        {"address": f"10.0.0.{n}", "chief": n == 1, "network_bandwidth": 10 if n == 1 else 1} for n in (1, 2, 3)
    ]}),
}  # fmt: skip


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", cases.MODELS)
def test_no_builder_is_predicted_faster(model, cluster):
    item, spec = cases.MODELS[model](), CLUSTERS[cluster]
    item.found["examples"] = 512
    strategy = Auto().build(item, spec)
    trial = Trial.of(item, spec, 512)
    step = trial.candidate("", strategy).prediction.step
    for builder in BUILDERS.values():
        if builder.__name__ != "Sharded":
            assert step <= trial.candidate("", builder().build(item, spec)).prediction.step
    assert Auto().build(item, spec).serialize() == strategy.serialize()
    saved = Strategy.deserialize(strategy.serialize())
    assert "auto chose" in Plan(plan_table(StrategyCompiler(item, spec).compile(saved), item))


def test_what_was_chosen_prints():
    made = [
        f"{model} on {cluster}\n{Auto().build(cases.MODELS[model](), spec)}"
        for model in cases.MODELS for cluster, spec in CLUSTERS.items()
    ]
    goldens.check("auto", "\n\n".join(made))


def test_the_default_is_kept_where_nothing_is_faster():
    one = ResourceSpec.local(cpus=2)
    assert Auto().build(cases.mlp(), one).id == Parallax().build(cases.mlp(), one).id
    assert Trial.of(cases.mlp(), one, 32).compared(USUAL)[0].name == "Parallax"


def test_single_variables_are_changed_where_that_helps():
    """Parallax has the table on one server, whose update takes long, and PartitionedPS has the kernel on servers."""
    table = Variable("table", (2_000_000, 32), "float32", is_sparse=True)
    slot = Variable("momentum", table.shape, "float32", trainable=False, kind="optimizer")
    item = GraphItem((table, slot, Variable("kernel", (2000, 1000), "float32")))
    trial = Trial.of(item, machines(4), 128)
    first, *_ = best(trial, ())
    made = improved(trial, first)
    assert 1.2 * made.prediction.step < first.prediction.step
    kernel, split = (plan.text for plan in sorted(made.compiled.variables, key=lambda plan: plan.variable.name))
    assert kernel.startswith("all_reduce(group=") and split.startswith("split(axis=0, shards=4) ps(")
    again = trial.candidate("", made.strategy)
    assert again.prediction == made.prediction, "of the strategy itself, not of single changes"
    alone = Trial.of(item, ResourceSpec.local(cpus=2), 4096)
    assert improved(alone, found := best(alone, ())[0]) is found


def test_arithmetic_that_may_be_faster_hides_nothing():
    """Gradients of some layers would travel unseen during slow arithmetic, in place of their factors."""
    item = GraphItem(tuple(Variable(f"kernel{n}", (512, 512), "float32") for n in range(32)))
    trial = Trial.of(item, machines(2), 128)
    found, *_ = best(trial, ())
    assert improved(trial, found) is found


def test_what_changes_numbers_is_tried_only_if_it_is_allowed():
    item, spec = cases.cnn(), machines(2, network_bandwidth=0.1)
    assert "compressor" not in str(Auto().build(item, spec))
    for name, compressor in (("bfloat16", "HorovodCompressorEF"), ("PowerSGDCompressor", "PowerSGDCompressor")):
        made = Auto(allow=name).build(item, spec)
        assert f"compressor={compressor}" in str(made), name
        assert "not exact" in Plan(plan_table(StrategyCompiler(item, spec).compile(made), item))
    assert Auto(allow=["float16"]) == Auto(allow=("float16",)) == Auto(allow="float16")
    assert [each.name for each in best(Trial.of(item, spec, 512), ("Sharded",))].count("Sharded") == 1


def test_what_fits_into_memory_is_better_than_what_is_fast():
    slots = (Variable(name, (2048, 4096), "float32", trainable=False, kind="optimizer") for name in ("m", "v"))
    item = GraphItem((Variable("kernel", (2048, 4096), "float32"), *slots))
    spec = machines(2, gpus=[0], network_bandwidth=0.2)
    mib = 1 << 20

    def chosen(card, machine):
        trial = Trial.of(item, spec, 64, available=lambda name: (card if ":GPU:" in name else machine) * mib)
        found = best(trial, ())
        return found[0].name, trial.fits(found[0])

    assert chosen(100, 4) == ("Parallax", True), "the kernel and two slots, of 32 MiB each"
    assert chosen(40, 100) == ("PartitionedPS", True), "a mirror on the card, the rest on the machines"
    assert chosen(90, 4) == ("Sharded", True)
    assert chosen(60, 4) == ("Sharded(weights='gathered')", True)
    assert chosen(4, 4)[1] is False


def test_it_has_a_name_and_is_written_with_its_options():
    assert resolve("auto", NAMES) == Auto() == read_builder("auto", NAMES) == resolve(Auto, NAMES)
    assert read_builder("auto(allow=('bfloat16',))", NAMES) == Auto(allow=("bfloat16",))
    assert (written(Auto()), written(Auto(allow="Sharded"))) == ("Auto", "Auto(allow=('Sharded',))")
    for text, name in (("auto", "auto"), ("PartitonedPS", "PartitionedPS")):
        with pytest.raises(StrategyError) as error:
            resolve(f"{text}x", NAMES)
        assert f"Did you mean '{name}'?" in str(error.value) and str(error.value).endswith("Sharded, auto.")
    with pytest.raises(StrategyError, match=r"unknown allow\. Did you mean 'Sharded'"):
        Auto(allow=("Sharde",))
    with pytest.raises(StrategyError, match=r"Auto\(allow=5\): allow is a tuple of names: Sharded, float16"):
        Auto(allow=5)
    assert set(ALLOWED) == {"Sharded", "float16", "bfloat16", "PowerSGDCompressor"}


def test_the_search_takes_two_seconds_at_most():
    item = GraphItem(tuple(Variable(f"kernel{n}", (64 * (1 + n % 7), 512), "float32") for n in range(200)))
    began = time.process_time()
    made = Auto().build(item, machines(8))
    assert time.process_time() - began < 6, "an idle machine takes one"
    assert len(made.node_config) == 200


def test_what_is_tried_are_all_builders_and_their_useful_options():
    assert {type(each).__name__ for each in USUAL} == {*BUILDERS} - {"Sharded"}
    assert {AllReduce(factor_rows=0), Parallax(factor_rows=0)} < set(USUAL) and PartitionedPS() in USUAL
