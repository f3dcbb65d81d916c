"""Strategies written by hand: what the compiler makes of them, what it refuses, and their way through bytes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodist_core import GraphItem, ResourceSpec, Strategy, StrategyCompiler, StrategyError, Variable
from autodist_core.proto import strategy_pb2, synchronizers_pb2
from autodist_core.strategy import base
from autodist_core.strategy.base import StrategyCompiler as FoundInBase
from autodist_core.strategy.synchronizers import AllReducePlan, PSPlan
from tests.planning import cases, goldens

Node = strategy_pb2.Strategy.Node
PS = synchronizers_pb2.PSSynchronizer
Reduce = synchronizers_pb2.AllReduceSynchronizer
CPU0, CPU1 = "localhost:CPU:0", "localhost:CPU:1"
SPEC = ResourceSpec({"nodes": [{"address": "localhost", "cpus": 2, "gpus": 1}]})
ITEM = GraphItem(
    (
        Variable("w", (7, 4), "float32"),
        Variable("b", (4,), "float32"),
        Variable("scale", (), "float32"),
        Variable("mean", (4,), "float32", trainable=False),
    )
)


def on(*places, **options):
    return PS(**{"reduction_destinations": places, "sync": True, **options})


def written(*nodes, replicas=(CPU0, CPU1), rest=("w", "b", "scale")):
    """A strategy of these nodes, and of plain ones for the variables in ``rest`` that they leave out."""
    named = {node.var_name.removesuffix(":0") for node in nodes}
    others = [Node(var_name=name, AllReduceSynchronizer=Reduce(spec="NCCL")) for name in rest if name not in named]
    return Strategy(
        strategy_pb2.Strategy(
            node_config=[*nodes, *others], graph_config=strategy_pb2.Strategy.GraphConfig(replicas=replicas)
        )
    )


def plans(strategy, item=ITEM):
    return {plan.variable.name: plan for plan in StrategyCompiler(item, SPEC).compile(strategy).variables}


def test_both_forms_of_the_reduction_destination():
    both = [
        plans(written(Node(var_name="w", PSSynchronizer=ps)))["w"]
        for ps in (PS(reduction_destination=CPU1, sync=True), on(CPU1), on(CPU1, reduction_destination=CPU1))
    ]
    assert both[0] == both[1] == both[2]
    assert both[0].synchronizer == PSPlan((CPU1,), False, True, 0)


def test_both_forms_of_the_group():
    def groups(**fields):
        nodes = [Node(var_name=name, AllReduceSynchronizer=Reduce(**fields)) for name in ("w", "b", "scale")]
        return [plan.synchronizer.group for plan in plans(written(*nodes)).values()]

    assert groups() == [0, 0, 0]
    assert groups(group=2) == [2, 2, 2]
    assert groups(chunk_size=1) == [0, 1, 2]
    assert groups(chunk_size=2) == [0, 0, 1]
    assert groups(chunk_size=1, group=0) == [0, 0, 0]


def test_the_index_of_a_chunk_is_the_graphs_and_counts_shards():
    nodes = [
        Node(var_name=name, AllReduceSynchronizer=Reduce(chunk_size=2), partitioner="3,1" if name == "w" else "")
        for name in ("scale", "b", "w")
    ]
    made = plans(written(*nodes))
    assert [shard.synchronizer.group for shard in made["w"].shards] == [0, 0, 1]
    assert made["b"].synchronizer.group == 1 and made["scale"].synchronizer.group == 2


def test_the_mixed_strategy_of_the_seed():
    item = GraphItem((Variable("W", (3, 2), "float32"), Variable("b", (2,), "float32")))
    strategy = written(
        Node(var_name="W:0", PSSynchronizer=PS(reduction_destinations=[CPU0], sync=True)),
        Node(var_name="b:0", AllReduceSynchronizer=Reduce(chunk_size=128)),
        rest=(),
    )
    made = plans(strategy, item)
    assert made["W"].synchronizer == PSPlan((CPU0,))
    assert made["b"].synchronizer == AllReducePlan("AUTO", group=0, chunk_size=128)


def test_shards():
    parts = [
        Node(var_name="w/part_0:0", PSSynchronizer=on(CPU1)),
        Node(AllReduceSynchronizer=Reduce(spec="RING", group=1)),
        Node(),
    ]
    mixed = Node(var_name="w", partitioner="3,1", part_config=parts, PSSynchronizer=on(CPU0))
    plan = plans(written(mixed))["w"]
    assert plan.axis == 0
    assert [(each.variable.name, each.variable.offset, each.variable.shape) for each in plan.shards] == [
        ("w/part_0", 0, (3, 4)), ("w/part_1", 3, (2, 4)), ("w/part_2", 5, (2, 4)),
    ]  # fmt: skip
    assert plan.text == (
        "split(axis=0, shards=3) ps(localhost:CPU:1) + all_reduce(group=1, spec=RING) + ps(localhost:CPU:0)"
    )
    in_turn = plans(written(Node(var_name="w", partitioner="1,1:2:1", PSSynchronizer=on(CPU0, CPU1))))["w"]
    assert in_turn.text == "split(axis=1, shards=1:2:1) ps(localhost:CPU:0, localhost:CPU:1, localhost:CPU:0)"
    assert [(each.variable.offset, each.variable.shape[1]) for each in in_turn.shards] == [(0, 1), (1, 2), (3, 1)]


def test_equal_meaning_gives_equal_text():
    short = written(Node(var_name="w", partitioner="2,1", PSSynchronizer=on(CPU0, CPU1)))
    parts = [Node(var_name=f"w/part_{index}", PSSynchronizer=on(place)) for index, place in enumerate((CPU0, CPU1))]
    assert written(Node(var_name="w", partitioner="2, 1", part_config=parts)).id == short.id
    assert plans(written(Node(var_name="w", partitioner="2,1", part_config=parts)))["w"] == plans(short)["w"]


@pytest.mark.parametrize("name", ["dense/kernel", "dense/kernel:0"])
def test_tensorflows_own_name_is_accepted(name):
    item = GraphItem((Variable("dense/kernel", (2,), "float32"),))
    strategy = written(Node(var_name=name, AllReduceSynchronizer=Reduce()), rest=())
    assert list(plans(strategy, item)) == ["dense/kernel"]


def w(synchronizer=None, **fields):
    """A strategy that says something of ``w``, and nothing remarkable of the others."""
    kind = "AllReduceSynchronizer" if isinstance(synchronizer, Reduce) else "PSSynchronizer"
    return written(Node(var_name="w", **fields, **({kind: synchronizer} if synchronizer else {})))


WRONG = {
    "an unknown variable": lambda: written(Node(var_name="scales", PSSynchronizer=on(CPU0))),
    "a variable that is not trained": lambda: written(Node(var_name="mean", PSSynchronizer=on(CPU0))),
    "a missing node": lambda: written(rest=("w", "scale")),
    "two nodes": lambda: written(*[Node(var_name=name, PSSynchronizer=on(CPU0)) for name in ("w", "w:0")]),
    "no synchronizer": lambda: w(),
    "no replicas": lambda: written(replicas=()),
    "a replica twice": lambda: written(replicas=(CPU0, CPU0)),
    "an unknown replica": lambda: written(replicas=(CPU0, "localhost:CPU:2")),
    "a replica that is no device": lambda: written(replicas=(CPU0, "localhost")),
    "no destination": lambda: w(on()),
    "an unknown destination": lambda: w(on("10.0.0.9:CPU:0")),
    "a destination that is a GPU": lambda: w(on("localhost:GPU:0")),
    "two destinations for a whole": lambda: w(on(CPU0, CPU1)),
    "both destination fields": lambda: w(on(CPU0, reduction_destination=CPU1)),
    "more destinations than shards": lambda: w(on(CPU0, CPU1, CPU0), partitioner="2,1"),
    "gathered in one piece": lambda: w(on(CPU0, gathered=True)),
    "gathered and stale": lambda: w(on(CPU0, CPU1, gathered=True, staleness=1), partitioner="2,1"),
    "a wire dtype of mirrors": lambda: w(on(CPU0, CPU1, wire_dtype="bfloat16"), partitioner="2,1"),
    "staleness without sync": lambda: w(on(CPU0, sync=False, staleness=2)),
    "negative staleness": lambda: w(on(CPU0, staleness=-1)),
    "a negative group": lambda: w(Reduce(group=-1)),
    "a negative chunk size": lambda: w(Reduce(chunk_size=-1)),
    "an unknown compressor": lambda: w(Reduce(compressor=7)),
    "an unknown spec": lambda: w(Reduce(spec=9)),
    "a rank without PowerSGD": lambda: w(Reduce(power_sgd_rank=3)),
    "a negative rank": lambda: w(Reduce(compressor="PowerSGDCompressor", power_sgd_rank=-2)),
    "a negative size of buckets": lambda: w(Reduce(bucket_bytes=-1)),
    "a negative number of factors' rows": lambda: w(Reduce(factor_rows=-1)),
    "an unknown wire dtype": lambda: w(Reduce(compressor="HorovodCompressor", wire_dtype=7)),
    "a wire dtype without half precision": lambda: w(Reduce(compressor="PowerSGDCompressor", wire_dtype="bfloat16")),
    "a malformed partitioner": lambda: w(on(CPU0), partitioner="two"),
    "a partitioner that splits nothing": lambda: w(on(CPU0), partitioner="1,1"),
    "a partitioner with a zero": lambda: w(on(CPU0), partitioner="2,0"),
    "two active axes": lambda: w(on(CPU0), partitioner="2,2"),
    "the wrong rank": lambda: w(on(CPU0), partitioner="2"),
    "a scalar split": lambda: written(Node(var_name="scale", partitioner="2", PSSynchronizer=on(CPU0))),
    "more shards than rows": lambda: w(on(CPU0), partitioner="8,1"),
    "parts without a partitioner": lambda: w(part_config=[Node(PSSynchronizer=on(CPU0))]),
    "too few parts": lambda: w(partitioner="2,1", part_config=[Node(PSSynchronizer=on(CPU0))]),
    "a part without a synchronizer": lambda: w(partitioner="2,1", part_config=[Node(PSSynchronizer=on(CPU0)), Node()]),
    "a part of another name": lambda: w(
        on(CPU0), partitioner="2,1", part_config=[Node(var_name="b/part_0", PSSynchronizer=on(CPU0)), Node()]
    ),
    "a part in parts": lambda: w(
        on(CPU0), partitioner="2,1", part_config=[Node(partitioner="2,1", PSSynchronizer=on(CPU0)), Node()]
    ),
    "a part elsewhere": lambda: w(
        on(CPU0), partitioner="2,1", part_config=[Node(), Node(PSSynchronizer=on("a:CPU:0"))]
    ),
    "a part on two devices": lambda: w(
        on(CPU0), partitioner="2,1", part_config=[Node(), Node(PSSynchronizer=on(CPU0, CPU1))]
    ),
}


def refused(strategy):
    with pytest.raises(StrategyError) as caught:
        StrategyCompiler(ITEM, SPEC).compile(strategy)
    return caught.value


def test_everything_that_is_refused():
    lines = []
    for name, make in WRONG.items():
        strategy = make()
        assert str(strategy).startswith("strategy "), "a wrong strategy prints too"
        violations = refused(strategy).violations
        lines += [name, *(f"  {violation}" for violation in violations)]
    goldens.check("strategy_errors", "\n".join(lines))


NO_VALUES = {"both destination fields", "an unknown compressor", "an unknown spec", "an unknown wire dtype"}


@pytest.mark.parametrize("name", sorted(WRONG.keys() - NO_VALUES))
def test_nodes_are_refused_as_their_message_is(name):
    written_by_hand = WRONG[name]()
    of_values = Strategy.of(written_by_hand.replicas, written_by_hand.nodes)
    assert str(of_values) == str(written_by_hand)
    assert refused(of_values).violations == refused(written_by_hand).violations


@pytest.mark.parametrize(
    "synchronizer", [AllReducePlan("RNIG"), AllReducePlan(wire_dtype="7"), PSPlan((CPU0,), staleness="2")]
)
def test_a_node_that_no_message_holds_is_refused_by_its_variables_name(synchronizer):
    with pytest.raises(StrategyError, match=f"^'w/part_1': {re.escape(str(synchronizer))}: ") as caught:
        Strategy.of([CPU0], [base.Node.of(ITEM.variables[0], [AllReducePlan(), synchronizer])])
    assert len(caught.value.violations) == 1


def test_all_violations_at_once():
    strategy = written(
        Node(var_name="wieght", partitioner="a,b", PSSynchronizer=on("localhost:CPU:7", staleness=-3)),
        Node(var_name="w", PSSynchronizer=on("localhost:CPU:9", staleness=-2)),
        Node(var_name="b", partitioner="5", AllReduceSynchronizer=Reduce(group=99, compressor=7)),
        replicas=(CPU0, CPU0),
        rest=(),
    )
    error = refused(strategy)
    assert len(error.violations) == 10
    assert all(violation in str(error) for violation in error.violations)
    goldens.check("strategy_errors_together", str(error))


def test_the_compiler_is_found_where_users_look():
    assert FoundInBase is StrategyCompiler
    with pytest.raises(ImportError):
        from autodist_core.strategy.base import StrategyComplier  # noqa: F401


def test_the_id_is_the_contents():
    one, two = written(), written()
    two.notes.append("a note of its own")
    two.node_config[0].note = "another"
    assert one.id == two.id and one != two
    two.graph_config.replicas.reverse()
    assert one.id != two.id
    assert len({written(Node(var_name="w", PSSynchronizer=on(place))).id for place in (CPU0, CPU1)}) == 2
    assert "note: a note of its own" in str(two)
    copy = one.copy()
    copy.node_config.pop()
    assert len(one.node_config) == 3 and copy.id != one.id


def test_bytes_that_were_changed_are_refused():
    message = written().proto
    message.graph_config.replicas.reverse()
    with pytest.raises(StrategyError, match="it was changed after it was stored"):
        Strategy.deserialize(message.SerializeToString())
    message.id = ""
    assert Strategy.deserialize(message.SerializeToString()).proto.id
    with pytest.raises(StrategyError, match="2 bytes are not a serialized Strategy"):
        Strategy.deserialize(b"\xff\xff")


def test_an_original_message_is_read():
    """Field numbers are those of the original system: bytes written by hand from them."""

    def field(number, payload):
        return bytes([number << 3 | 2, len(payload)]) + payload

    ps = field(1, CPU1.encode()) + b"\x10\x01\x18\x01\x20\x03"
    reduce = b"\x08\x02\x10\x01\x18\x01"
    data = field(3, field(1, b"w") + field(2, ps)) + field(3, field(1, b"b") + field(3, reduce))
    data += field(3, field(1, b"scale") + field(3, b"")) + field(4, field(1, CPU0.encode()))
    made = plans(Strategy.deserialize(data))
    assert made["w"].synchronizer == PSPlan((CPU1,), local_replication=True, sync=True, staleness=3)
    assert made["b"].synchronizer == AllReducePlan("RING", "HorovodCompressor", 1)


SYNCHRONIZERS = st.one_of(
    st.builds(
        lambda places, sync, staleness: {"PSSynchronizer": on(*places, sync=sync, staleness=staleness)},
        st.lists(st.sampled_from([CPU0, CPU1, "localhost:GPU:0", "nowhere:CPU:0", "?"]), max_size=3),
        st.booleans(),
        st.integers(-1, 3),
    ),
    st.builds(
        lambda group, chunk, compressor, bucket, wire: {
            "AllReduceSynchronizer": Reduce(
                group=group, chunk_size=chunk, compressor=compressor, bucket_bytes=bucket, wire_dtype=wire
            )
        },
        st.none() | st.integers(-1, 5),
        st.integers(-1, 3),
        st.sampled_from([0, 1, 2, 3, 20]),
        st.sampled_from([0, 0, 1, 1 << 40, -1]),
        st.sampled_from([0, 1, 2]),
    ),
    st.just({}),
)
NODES = st.builds(
    lambda name, synchronizer, partitioner, parts: Node(
        var_name=name, partitioner=partitioner, part_config=[Node(**part) for part in parts], **synchronizer
    ),
    st.sampled_from(["w", "w:0", "b", "scale", "mean", "other"]),
    SYNCHRONIZERS,
    st.sampled_from(["", "", "2", "2,1", "1,3", "9,1", "1,1", "x"]),
    st.lists(SYNCHRONIZERS, max_size=3),
)


@given(st.lists(NODES, max_size=4), st.lists(st.sampled_from([CPU0, CPU1, "localhost:GPU:0", "?"]), max_size=3))
def test_any_strategy_survives_bytes_and_is_compiled_or_refused(nodes, replicas):
    strategy = written(*nodes, replicas=replicas)
    again = Strategy.deserialize(strategy.serialize())
    assert again == strategy and again.id == strategy.id and str(again) == str(strategy)
    try:
        made = StrategyCompiler(ITEM, SPEC).compile(strategy)
    except StrategyError as error:
        assert error.violations
        return
    assert [plan.variable.name for plan in made.variables] == ["w", "b", "scale"]
    for plan in made.variables:
        sizes = [shard.variable.shape[plan.axis] for shard in plan.shards]
        assert not sizes or sum(sizes) == plan.variable.shape[plan.axis]
        for synchronizer in (piece.synchronizer for piece in plan.pieces):
            assert not isinstance(synchronizer, PSPlan) or len(synchronizer.destinations) == 1


@pytest.mark.parametrize("cluster", cases.CLUSTERS)
def test_every_built_strategy_survives_bytes(cluster):
    item, spec = cases.mlp(), cases.cluster(cluster)
    for builder in cases.builders().values():
        strategy = builder.build(item, spec)
        assert Strategy.deserialize(strategy.serialize()) == strategy
        assert Strategy.of(strategy.replicas, strategy.nodes, strategy.notes).serialize() == strategy.serialize()
        compiled = StrategyCompiler(item, spec).compile(strategy)
        assert compiled.id == strategy.id
        assert (
            str(compiled).splitlines()[1 : -len(item.variables)]
            == str(strategy).splitlines()[1 : len(compiled.replicas) + 1]
        )
