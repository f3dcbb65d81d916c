"""The builders: their rules, their arguments, their names, and one that a user writes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodist_core import GraphItem, ResourceSpec, StrategyCompiler, StrategyError, Variable, strategy
from autodist_core.plan import Plan, plan_table
from autodist_core.proto import strategy_pb2
from autodist_core.strategy import (
    BUILDERS,
    PS,
    AllReduce,
    Parallax,
    PartitionedAR,
    PartitionedPS,
    PSLoadBalancing,
    RandomAxisPartitionAR,
    Sharded,
    Strategy,
    StrategyBuilder,
    UnevenPartitionedPS,
    resolve,
)
from autodist_core.strategy.parallax import Default
from autodist_core.strategy.partition import PartitionerConfig, shard_count, shard_sizes, uneven_shard_count
from autodist_core.strategy.written import read_builder, written
from tests.planning import cases, goldens


def compiled(builder, item, spec):
    return StrategyCompiler(item, spec).compile(builder.build(item, spec))


def test_load_balancing_fills_the_emptiest_device():
    sizes = (400, 100, 100, 300, 1)
    item = GraphItem(tuple(Variable(f"v{index}", (size,), "float32") for index, size in enumerate(sizes)))
    plans = compiled(PSLoadBalancing(), item, ResourceSpec.local(cpus=2)).variables
    assert [plan.synchronizer.destinations[0][-1] for plan in plans] == list("01110")


@pytest.mark.parametrize("builder", [PartitionedPS(), UnevenPartitionedPS(), Sharded(whole_bytes=0)], ids=str)
def test_a_variables_shards_are_on_several_servers_however_full_these_are(builder):
    sizes = {"large": (999, 70), "bias": (6,), "another": (8,), "matrix": (10, 4)}
    item = GraphItem(tuple(Variable(name, shape, "float32") for name, shape in sizes.items()))
    for cpus in (2, 3, 4):
        for plan in compiled(builder, item, ResourceSpec.local(cpus=cpus)).variables:
            held = Counter(plan.synchronizer.destinations)
            assert len(held) == min(cpus, len(plan.shards)) and max(held.values()) - min(held.values()) <= 1


def test_what_a_step_needs_whole_is_spread_over_its_destinations():
    sizes = {"split": 99, "large": 50, "small": 20, "another": 20}
    item = GraphItem(tuple(Variable(name, (size,), "float32") for name, size in sizes.items()))
    whole = compiled(Sharded(whole_bytes=0), item, ResourceSpec.local(cpus=2)).for_step(list(sizes)[1:])
    assert [plan.text[-2] for plan in whole.variables[1:]] == list("100")


def test_groups_count_variables_and_shards():
    item, spec = cases.mlp(), ResourceSpec.local(cpus=2)
    groups = [plan.synchronizer.group for plan in compiled(AllReduce(chunk_size=4), item, spec).variables]
    assert groups == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    shards = [shard for plan in compiled(PartitionedAR(chunk_size=3), item, spec).variables for shard in plan.shards]
    assert [shard.synchronizer.group for shard in shards] == [index // 3 for index in range(16)]


def test_parallax_is_all_reduce_for_dense_and_servers_for_sparse():
    item, spec = cases.embeddings(), cases.cluster("two_nodes")
    plans = {plan.variable.name: plan.text for plan in compiled(Parallax(), item, spec).variables}
    assert plans["users/table"] == "ps(10.0.0.1:CPU:0)" and plans["items/table"] == "ps(10.0.0.2:CPU:0)"
    assert plans["shared/kernel"] == "all_reduce(group=0)"


def test_a_random_axis_repeats_with_its_seed():
    item, spec = cases.mlp(), ResourceSpec.local(cpus=2)

    def axes(seed, variables=item):
        plans = compiled(RandomAxisPartitionAR(seed=seed), variables, spec).variables
        return {plan.variable.name: plan.axis for plan in plans}

    assert axes(1) == axes(1)
    assert {tuple(axes(seed).values()) for seed in range(5)} != {tuple(axes(0).values())}
    # What else the model has changes nothing.
    assert axes(3, GraphItem(item.variables[2:])).items() <= axes(3).items()
    sparse = GraphItem((Variable("table", (10, 10), "float32", is_sparse=True),))
    assert {axes(seed, sparse)["table"] for seed in range(20)} == {0}


def test_replicas_are_gpus_and_the_cpus_of_nodes_without():
    strategy = PS().build(cases.cnn(), cases.cluster("uneven"))
    second = [f"10.0.0.2:GPU:{index}" for index in range(3)]
    assert list(strategy.replicas) == ["head.example.org:GPU:0", *second, "[fe80::3]:CPU:0", "[fe80::3]:CPU:1"]


def test_options_reach_the_plan():
    item, spec = cases.cnn(), ResourceSpec.local(cpus=2)
    ps = compiled(Parallax(7, True, True, 2), cases.embeddings(), spec).variables[0].synchronizer
    assert (ps.local_replication, ps.sync, ps.staleness) == (True, True, 2)
    reduce = compiled(AllReduce(1, "RING", "HorovodCompressorEF"), item, spec).variables[1].synchronizer
    assert (reduce.spec, reduce.compressor, reduce.group) == ("RING", "HorovodCompressorEF", 1)
    assert compiled(PS(sync=False), item, spec).variables[0].text == "ps(localhost:CPU:0, sync=False)"


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, "all_reduce(group=0)"),
        ({"bucket_bytes": 4 << 20}, "all_reduce(group=0)"),
        ({"bucket_bytes": 1000}, "all_reduce(group=0, bucket_bytes=1000)"),
        ({"compressor": "HorovodCompressor"}, "all_reduce(group=0, compressor=HorovodCompressor)"),
        ({"compressor": "HorovodCompressorEF", "wire_dtype": "bfloat16"},
         "all_reduce(group=0, compressor=HorovodCompressorEF, wire_dtype=bfloat16)"),
        ({"compressor": "PowerSGDCompressor"}, "all_reduce(group=0, compressor=PowerSGDCompressor, rank=2)"),
        ({"compressor": "PowerSGDCompressor", "power_sgd_rank": 5, "bucket_bytes": 1},
         "all_reduce(group=0, compressor=PowerSGDCompressor, rank=5, bucket_bytes=1)"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("builder", [AllReduce, Parallax, PartitionedAR, RandomAxisPartitionAR])
def test_options_of_the_wire_reach_the_plan_and_the_id(builder, options: dict, text: str):
    item, spec = GraphItem((Variable("w", (1, 5), "float32"),)), ResourceSpec.local(cpus=2)
    built = builder(**options).build(item, spec)
    plan = StrategyCompiler(item, spec).compile(built).variables[0]
    assert str(plan.pieces[0].synchronizer) == text
    changed = options not in ({}, {"bucket_bytes": 4 << 20})
    assert (built.id != builder().build(item, spec).id) == changed
    assert (built.serialize() != builder().build(item, spec).serialize()) == changed


def test_wrong_arguments_have_their_messages():
    wrong = [
        lambda: PS(staleness=3, sync=False),
        lambda: PSLoadBalancing(staleness=-1),
        lambda: Sharded(weights="gather"),
        lambda: Sharded(weights=0),
        lambda: Sharded(whole_bytes=-1),
        *(lambda shares=shares: Sharded(shares=shares) for shares in (2, {"localhost": 0})),
        lambda: Sharded(shares={"gpu1": 2}).build(GraphItem(()), ResourceSpec.local(cpus=2)),
        lambda: Sharded(wire_dtype="bfloat16"),
        lambda: UnevenPartitionedPS(staleness=True),
        lambda: PS(sync="yes"),
        lambda: AllReduce(chunk_size=0),
        lambda: Parallax(chunk_size="128"),
        lambda: AllReduce(all_reduce_spec="RNIG"),
        lambda: AllReduce(compressor="HorovodCompresor"),
        lambda: AllReduce(bucket_bytes=0),
        lambda: AllReduce(wire_dtype="bfloat16"),
        lambda: Parallax(compressor="HorovodCompressor", wire_dtype="float8"),
        lambda: AllReduce(factor_rows=2**31),
        lambda: PartitionedAR(power_sgd_rank=3, compressor="HorovodCompressorEF"),
        lambda: RandomAxisPartitionAR(seed="a"),
        lambda: resolve("PartitonedPS"),
        lambda: resolve("AllReduce(chunk_size=1)"),
        lambda: resolve(""),
        lambda: PartitionerConfig(),
        lambda: PartitionerConfig([1, 2], "1,2"),
        lambda: PartitionerConfig([1, 0, 2]),
        lambda: PartitionerConfig(partition_str="1,b:2"),
    ]
    lines = []
    for make in wrong:
        with pytest.raises(StrategyError) as caught:
            make()
        lines.append(goldens.message(caught.value))
    goldens.check("builder_errors", "\n".join(lines))


def test_names_classes_and_finished_strategies_are_builders():
    item, spec = cases.cnn(), ResourceSpec.local(cpus=2)
    for name, builder in strategy.BUILDERS.items():
        assert resolve(name) == resolve(builder) == resolve(builder()) == builder()
        assert builder.__name__ == name and getattr(strategy, name) is builder
    finished = AllReduce().build(item, spec)
    taken = resolve(finished)
    finished.node_config.pop()
    assert taken.build(item, spec) == AllReduce().build(item, spec)
    assert resolve(None) == Default()
    assert "no strategy was named" in Plan(plan_table(compiled(resolve(None), item, spec)))


class Custom(StrategyBuilder):
    """The builder of the original documentation, with its imports changed and nothing else."""

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        strategy = Strategy()
        strategy.graph_config.replicas.extend([k for k, v in resource_spec.gpu_devices])
        variables = graph_item.trainable_var_op_to_var.values()
        reduction_devices = [k for k, _ in resource_spec.cpu_devices][0:1]
        node_config = []
        for var in variables:
            node = strategy_pb2.Strategy.Node()
            node.var_name = var.name
            node.PSSynchronizer.reduction_destinations.extend(reduction_devices)
            node.PSSynchronizer.local_replication = False
            node.PSSynchronizer.sync = True
            node.PSSynchronizer.staleness = 2
            node_config.append(node)
        strategy.node_config.extend(node_config)
        return strategy


@pytest.mark.parametrize("returned", [None, {}, strategy_pb2.Strategy], ids=["none", "dict", "class"])
def test_a_builder_that_returns_no_strategy_is_told_what_to_return(returned):
    class Forgets(StrategyBuilder):
        def build(self, graph_item, resource_spec):
            return returned

    with pytest.raises(StrategyError, match=r"build must return a Strategy: make one with Strategy\(\).*Received: "):
        compiled(Forgets(), cases.cnn(), ResourceSpec.local(cpus=2))


def test_a_builder_may_have_options_of_its_own():
    class Open(StrategyBuilder):
        def __init__(self, first, *, second=2, **rest):
            self.given = first, second, rest

        def build(self, graph_item, resource_spec):
            return PS().build(graph_item, resource_spec)

    assert Open(1, second=3, third=4).given == (1, 3, {"third": 4})


def test_the_custom_builder_of_the_seed():
    item, spec = cases.cnn(), cases.cluster("two_nodes")
    built = resolve(Custom).build(item, spec)
    assert Strategy.deserialize(built.serialize()) == built
    goldens.check("custom_builder", f"{built}\n\n{Plan(plan_table(StrategyCompiler(item, spec).compile(built)))}")


def test_partitioner_config():
    config = PartitionerConfig(partition_str=" 1, 3 ,1")
    assert (config.partition_list, config.partition_str, config.axis, config.num_shards) == ([1, 3, 1], "1,3,1", 1, 3)
    assert config == PartitionerConfig([1, 3, 1]) and hash(config) == hash(PartitionerConfig((1, 3, 1)))
    assert config == PartitionerConfig.along(1, 3, rank=3) != PartitionerConfig([3, 1])
    assert repr(config) == "PartitionerConfig(partition_str='1,3,1')"
    config.partition_list.append(7)
    assert config.num_shards == 3


@given(st.integers(0, 10**9), st.integers(1, 64))
def test_shard_counts_are_sensible(dimension, owners):
    count = shard_count(dimension, owners)
    assert 1 <= count <= max(2 * owners, 1) and count <= max(dimension, 1)
    assert (count == 1) == (owners == 1 or dimension < 2)
    uneven = uneven_shard_count(dimension, owners) if dimension else 1
    assert uneven == 1 or (dimension % uneven and uneven <= dimension)


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_shard_sizes_are_those_of_array_split(dimension, shards):
    sizes = shard_sizes(dimension, shards)
    assert sum(sizes) == dimension and len(sizes) == shards and max(sizes) - min(sizes) <= 1
    assert sizes == tuple(sorted(sizes, reverse=True))


def _python_says(builder, **options):
    with pytest.raises(TypeError, match="unexpected keyword argument") as refusal:
        builder(**options)
    return refusal.value


def unreadable(text, name):
    return (
        f"strategy {text!r} cannot be read. Expected Name(option=value, ...), such as {name}(...), with each option "
        "once. A value is a number, a text in quotes, True, False or None."
    )


UNREADABLE = {
    "AllReduce(": "AllReduce", "os.getcwd()": "AllReduce", "PS()+1": "PS", "PS(True)": "PS", "PS(**{})": "PS",
    "PS(staleness=int(1))": "PS", "PS(sync=True, sync=False)": "PS",
}  # fmt: skip
REFUSED = {
    **{text: unreadable(text, name) for text, name in UNREADABLE.items()},
    "PS(stalenes=1)": f"PS(stalenes=1): {_python_says(PS, stalenes=1)}.",
    "PSS(staleness=1)": "unknown strategy 'PSS'. Did you mean 'PS'? Known: " + ", ".join(BUILDERS) + ".",
    "AllReduce(chunk_size='x')": "AllReduce(chunk_size='x'): chunk_size is an integer from 1 to 2147483647.",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_strategy_is_refused(text: str):
    with pytest.raises(StrategyError) as refusal:
        read_builder(text)
    assert str(refusal.value) == REFUSED[text]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_is_read_as_it_is_written(name: str):
    builder = read_builder(name)
    assert written(builder) == name and read_builder(f" {name}() ") == builder


def test_options_that_differ_from_their_defaults_are_written():
    for builder in (AllReduce(chunk_size=1, bucket_bytes=100), RandomAxisPartitionAR(chunk_size=3, seed=5)):
        assert read_builder(written(builder)) == builder
    assert written(AllReduce(128, compressor="HorovodCompressor")) == "AllReduce(compressor='HorovodCompressor')"

    class OnFirst(StrategyBuilder):
        def build(self, graph_item, resource_spec):
            raise NotImplementedError

    assert written(OnFirst()) == "OnFirst"
