"""Factors: which gradients travel as two factors, what travels then, and which graph a size of a batch gets."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tensorflow as tf

from autodist_core import GraphItem, Variable
from autodist_core.capture import capture
from autodist_core.kernel import arrange, build, factor_limits
from autodist_core.plan import plan_table
from autodist_core.plan.headline import bytes_of_links
from autodist_core.reports.step_plan import planned
from autodist_core.step import naming
from autodist_core.step.grouping import by_key
from autodist_core.strategy import AllReduce, Parallax, PartitionedAR, Sharded
from autodist_core.strategy.factor_rows import factor_rows
from tests.capture.plain import dense_step, descend, gradients_of, trace
from tests.kernel.graphs import compiled, nodes_of, placed_on, summed
from tests.support.machines import machines
from tests.support.strategies import LOSSY

SENDING = AllReduce(factor_rows=100)
OF_SHARDS = Sharded(whole_bytes=0, factor_rows=100)


def _captured(shapes: dict[str, tuple[int, ...]], loss_of, dtype: str = "float64", each: tuple = (5,)) -> GraphItem:
    """A step of plain SGD on variables of ones, for examples of a shape."""
    variables = {name: tf.Variable(tf.ones(shape, dtype), name=name) for name, shape in shapes.items()}
    step = dense_step(variables, loss_of=loss_of)
    return capture(trace(step, variables, (tf.TensorSpec((None, *each), tf.float64, "x"),)))


@cache
def _item(dtype: str = "float64") -> GraphItem:
    """Two layers with one input, a third layer, and a bias."""

    def loss_of(given, x):
        x = tf.cast(x, dtype)
        between = tf.tanh(x @ given["left"]) * tf.tanh(x @ given["right"])
        return tf.reduce_mean(tf.square(between @ given["last"] + given["bias"]))

    return _captured({"left": (5, 4), "right": (5, 4), "last": (4, 3), "bias": (3,)}, loss_of, dtype)


@cache
def _of_all_items() -> GraphItem:
    """A layer over all items of a catalogue, whatever the batch is, and one over the batch."""

    def loss_of(given, x):
        items = tf.tanh(tf.ones((50, 5), "float64") @ given["catalogue"])
        return tf.reduce_mean(tf.tanh(x @ given["batch"]) @ tf.transpose(items))

    return _captured({"catalogue": (5, 4), "batch": (5, 4)}, loss_of)


@cache
def _of_positions() -> GraphItem:
    """A layer over the positions of sequences, and a layer over whole sequences."""

    def loss_of(given, x):
        positions = tf.tanh(tf.reshape(x, (-1, 5)) @ given["layer"])
        of_each = tf.reshape(positions, tf.concat([tf.shape(x)[:2], [4]], 0))
        return tf.reduce_mean(tf.tanh(tf.reshape(of_each, (-1, 12)) @ given["whole"]))

    return _captured({"layer": (5, 4), "whole": (12, 2)}, loss_of, each=(3, 5))


def _weighted(item: GraphItem) -> GraphItem:
    """As of a loss that is a mean over the batch: the replicas' gradients are added up as they are."""
    return replace(item, gradients=tuple(replace(each, weighted=True) for each in item.gradients))


def _sent(item: GraphItem, builder, *cpus: int, examples: int = 8) -> tuple[set[str], dict, set[str]]:
    graph = build(item, placed_on(item, builder, *cpus), examples=examples)
    gathers = nodes_of(graph.graph_def, "CollectiveGatherV2")
    return set(graph.factored), gathers, {
        node.name for node in graph.graph_def.node if re.match("all_reduce/.*/(added|sum)$", node.name)
    }


@pytest.mark.parametrize("builder", [SENDING, Parallax(factor_rows=100)], ids=str)
def test_factors_are_gathered_and_the_rest_is_added_up(builder):
    factored, gathers, sums = _sent(_weighted(_item()), builder, 1, 1)
    assert factored == {"left", "right", "last"}
    assert len(gathers) == 2 * 2, "on each machine one of the numbers of examples, and one bucket"
    assert len(sums) == 1, "the bias"


def test_a_factor_of_several_products_travels_once():
    item = _weighted(_item())
    built = build(item, placed_on(item, SENDING, 1, 1), examples=8)
    assert built.factored == {"left": (8 * (5 + 4),), "right": (8 * 4,), "last": (8 * (4 + 3),)}, "bytes of an example"
    graph = built.graph_def
    gathers = nodes_of(graph, "CollectiveGatherV2").items()
    (sent,) = [node for name, node in gathers if "replica0" in name and "length" not in name]
    nodes = {node.name: node for node in graph.node}
    joined = nodes[naming.node_of(sent.input[0])]
    assert joined.op == "ConcatV2" and joined.attr["N"].i == 5, "x, three gradients of outputs, and one input between"


def test_what_reads_gathered_weights_and_a_gradient_has_the_gradient_from_its_owner():
    variables = {"kernel": tf.Variable(tf.ones((5, 4), "float64"), name="kernel")}

    def step(tracer, x):
        _, gradients = gradients_of(variables, x, lambda given, x: tf.reduce_mean(tf.square(x @ given["kernel"])))
        decayed = {"kernel": gradients["kernel"] + variables["kernel"]}
        tracer.apply(decayed, descend(variables))
        return [tf.reduce_sum(decayed["kernel"])]

    item = _weighted(capture(trace(step, variables, (tf.TensorSpec((None, 5), tf.float64, "x"),))))
    nodes = build(item, placed_on(item, replace(OF_SHARDS, weights="gathered"), 1, 1), examples=8).graph_def.node
    reads = {name for node in nodes if "update/replica0/" in node.name for name in node.input if "reduced/" in name}
    assert {name.split("/")[1] for name in reads} == {f"server_10.0.0.{host}_CPU_0" for host in (1, 2)}


def test_batches_of_known_sizes_need_no_numbers_of_examples():
    item = _weighted(_item())
    graph = build(item, placed_on(item, SENDING, 1, 1), sizes=(5, 3), examples=8).graph_def
    sent = summed(graph, nodes_of(graph, "CollectiveGatherV2").values())
    # On each machine one bucket, and machine 1 pads to the rows of machine 0.
    assert [each.shape for each in sent] == 2 * [(5, 5 + 4 + 4 + 4 + 3)]


def _large(norm: bool) -> GraphItem:
    """Three layers of 8 MiB, a small one and a large one; with `norm`, the update needs all gradients."""
    shapes = dict.fromkeys(("first", "second", "third"), (5, 1 << 18)) | {"small": (5, 4), "last": (5, 1 << 18)}
    variables = {name: tf.Variable(tf.ones(shape, tf.float64), name=name) for name, shape in shapes.items()}

    def step(tracer, x):
        loss, gradients = gradients_of(variables, x, lambda given, x: tf.add_n([
            tf.reduce_mean(tf.tanh(x @ each)) for each in given.values()
        ]))
        tracer.apply(gradients, lambda handed: descend(variables)(
            dict(zip(handed, tf.clip_by_global_norm([*handed.values()], 1.0)[0], strict=True)) if norm else handed
        ))
        return [loss]

    return _weighted(capture(trace(step, variables, (tf.TensorSpec((None, 5), tf.float64, "x"),))))


@pytest.mark.parametrize(
    "builder, products_of", [(AllReduce(factor_rows=1 << 20), "factors/replica"), (OF_SHARDS, "reduced/server_")],
    ids=["AllReduce", "Sharded"],
)  # fmt: skip
@pytest.mark.parametrize("norm, waiting", [(False, 2), (True, 0)])
def test_a_large_product_waits_for_the_write_of_the_one_two_before(norm, waiting, builder, products_of):
    graph = build(item := _large(norm), placed_on(item, builder, 1, 1), examples=8).graph_def
    found = by_key(
        (name.split("/")[1], (name, [source for source in node.input if source.startswith("^")]))
        for name, node in nodes_of(graph, "MatMul").items() if name.startswith(products_of)
    )
    assert len(found) == 2, "each machine has its own products"
    for owner, products in found.items():
        assert len(products) == 5
        held = {name: awaited for name, awaited in products if awaited}
        assert len(held) == waiting and not any("small" in name for name in held)
        for (awaited,) in held.values():
            assert awaited.startswith(f"^update/{owner}/") and "AssignSubVariableOp" in awaited


@pytest.mark.parametrize(
    "item, builder, cpus, examples",
    [
        (_weighted(_item()), SENDING, (1, 1), 101), (_weighted(_item()), SENDING, (1, 1), 0),
        (_weighted(_item()), AllReduce(), (1, 1), 8), (_weighted(_item()), AllReduce(factor_rows=0), (1, 1), 8),
        (_weighted(_item()), SENDING, (2,), 8), (_weighted(_item()), SENDING, (3, 1), 8),
        (_weighted(_item()), AllReduce(compressor="HorovodCompressor"), (1, 1), 8),
        (_item(), SENDING, (1, 1), 8), (_weighted(_item("bfloat16")), SENDING, (1, 1), 8),
    ],
    ids=[
        "a large batch", "an unknown size", "small kernels", "never", "one machine", "three replicas on a machine",
        "a compressor", "gradients that are weighted later", "bfloat16",
    ],
)  # fmt: skip
def test_when_the_gradients_travel(item, builder, cpus, examples):
    factored, gathers, sums = _sent(item, builder, *cpus, examples=examples)
    assert not factored and not gathers
    assert sums


@pytest.mark.parametrize("compressor", [each.compressor for each in LOSSY])
def test_no_compressor_changes_factors(compressor):
    item, builder = _weighted(_item()), AllReduce(compressor=compressor, factor_rows=100)
    graph = build(item, placed_on(item, builder, 1, 1), examples=8)
    assert set(graph.factored) == {"left", "right", "last"}
    kept = {added.name for added in graph.added}
    assert not any(name in each for each in kept for name in ("left", "right", "last")), "no errors of these are kept"
    lossy = f"not exact: {compressor} is lossy"
    assert lossy in _plan(item, builder, (1, 1), 101) and lossy in _plan(item, builder, (1, 1))
    power_sgd = compressor == "PowerSGDCompressor"  # the others compress the bias
    assert (lossy in _plan(item, builder, (1, 1), 8)) != power_sgd
    assert (f"{compressor} has no effect in this batch" in _plan(item, builder, (1, 1), 8)) == power_sgd


def test_factors_whose_rows_are_no_examples_stay():
    for item, expected in ((_of_positions(), {"whole"}), (_of_all_items(), {"batch"})):
        assert _sent(_weighted(item), SENDING, 1, 1)[0] == expected


def _behind(first) -> GraphItem:
    """A layer behind an operation on inputs of 300 positions."""
    def loss_of(given, x):
        return tf.reduce_mean(tf.tanh(tf.reduce_mean(first(x), 1) @ given["layer"]))

    return _captured({"layer": (5, 4)}, loss_of, each=(300, 5))


@pytest.mark.parametrize(
    "first, expected",
    [
        (lambda x: tf.reshape(tf.tanh(tf.reshape(x, (tf.shape(x)[0] * 300, 5))), tf.shape(x)), {"layer"}),
        (lambda x: tf.concat(tf.split(x, 2, axis=0), 0), set()),
        (lambda x: tf.reshape(tf.reshape(x, (-1, 8, 300, 5)), (-1, 300, 5)), set()),
    ],
    ids=["many positions in one axis", "halves of a batch", "groups of eight examples"],
)
def test_a_step_whose_rows_are_not_known_is_built(first, expected):
    """TensorFlow infers no shapes of such a step for the numbers of examples that are tried; the gradient travels."""
    factored, _, _ = _sent(_weighted(_behind(first)), SENDING, 1, 1)
    assert factored == expected


def test_variables_in_shards_send_gradients():
    item, builder = _weighted(_item()), PartitionedAR(factor_rows=100)
    assert not _sent(item, builder, 1, 1)[0], "each of them is split over two replicas"
    assert "factor_rows has no effect on 4 variables that are split: the gradients of shards travel" in _plan(
        item, builder, (1, 1)
    )
    assert "factor_rows" not in _plan(item, PartitionedAR(), (1, 1))


def _plan(item: GraphItem, builder, cpus: tuple[int, ...], examples: int = 0, kind: str = "cpus") -> str:
    spec = machines(*cpus, kind=kind)
    return planned(item, compiled(item, builder, spec), None, lambda strategy: (), "", examples=examples)


def _bytes_of(plan: str) -> dict[str, str]:
    rows = [line.split() for line in plan.splitlines() if " : " in line]
    return {words[0]: " ".join(words[-2:]) for words in rows}


def test_the_plan_of_a_batch_counts_the_factors():
    """Over three machines, each sends its rows of 8 bytes a number to two others; a gradient crosses four links."""
    item, gradients = _weighted(_item()), {"left": "640 B/step", "right": "640 B/step", "last": "384 B/step"}
    bias = {"bias": "96 B/step"}
    without = _plan(item, SENDING, (1, 1, 1))
    assert _bytes_of(without) == gradients | bias
    assert "in batches of at most factor_rows examples, the factors of the gradients of left, right, last" in without
    small = _plan(item, SENDING, (1, 1, 1), 3)
    assert _bytes_of(small) == {"left": "432 B/step", "right": "192 B/step", "last": "336 B/step"} | bias
    assert "in this batch of 3 examples, the factors of the gradients of left, right, last travel" in small
    large = _plan(item, SENDING, (1, 1, 1), 101)
    assert _bytes_of(large) == gradients | bias
    assert "the gradients of left, right, last travel: this batch of 101 examples is above factor_rows" in large


@pytest.mark.parametrize(
    "builder, cpus",
    [(SENDING, (2, 1, 1)), (OF_SHARDS, (1, 1, 1)), (replace(OF_SHARDS, weights="gathered"), (1, 1, 1))],
    ids=["AllReduce", "kept", "gathered"],
)  # fmt: skip
def test_a_plan_counts_what_the_links_carry(builder, cpus):
    item, spec = _weighted(_item()), machines(*cpus)
    strategy = compiled(item, builder, spec)
    sizes = build(item, placed_on(item, builder, *cpus), examples=8).factored
    assert set(sizes) == {"left", "right", "last"}
    arranged = arrange(item, strategy, None)
    table = plan_table(arranged.strategy, item, arranged.memories, examples=8, factored=sizes)
    links = bytes_of_links(strategy.variables, [node.address for node in spec.nodes], {}, 8, sizes)
    assert sum(row.step for row in table.rows) == pytest.approx(sum(links.values()), rel=0.05), "whole bytes"


def test_gathered_weights_are_rounded_also_where_factors_travel():
    builder = replace(OF_SHARDS, weights="gathered", wire_dtype="bfloat16")
    assert "not exact: wire_dtype=bfloat16 is lossy" in _plan(_weighted(_item()), builder, (1, 1), 8)


@pytest.mark.parametrize("cpus, examples", [((1, 1), 8), ((2, 1), 8), ((1, 1), 0)], ids=str)
def test_owners_of_shards_multiply_columns_of_factors(cpus, examples):
    """Left and right are cut along their second axis, and share the other factor; last is cut along its first one."""
    item = _weighted(_item())
    built = build(item, placed_on(item, OF_SHARDS, *cpus), examples=examples)
    products = [name for name, node in nodes_of(built.graph_def, "MatMul").items() if node.attr["transpose_a"].b]
    if not examples:
        assert not built.factored and not any(name.startswith("reduced/") for name in products)
        return
    assert all(name.startswith("reduced/") for name in products), "no replica has a gradient of a whole kernel"
    if cpus == (1, 1):
        assert built.factored == {"left": (8 * (5 + 2),), "right": (8 * 2,), "last": (8 * (2 + 3),)}


def _of(outputs) -> GraphItem:
    """A kernel, and what is made of the inputs and of it."""
    return _captured({"layer": (5, 5)}, lambda given, x: tf.reduce_mean(tf.tanh(outputs(x, given["layer"]))))


@pytest.mark.parametrize(
    "item, cpus, said",
    [
        (_weighted(_item()), (3, 1), "left, right, last: 10.0.0.1 has 3 replicas, and factors travel if no machine"),
        (_weighted(_item()), (2,), "left, right, last: all replicas are on one machine"),
        (_weighted(_item("bfloat16")), (1, 1), "left, right, last: the gradient is not one product"),
        (_weighted(_of(lambda x, k: tf.tanh(x @ k) @ k)), (1, 1), "layer: the gradient is not one product"),
        (_weighted(_of(lambda x, k: k @ tf.transpose(x))), (1, 1), "layer: the gradient is not one product"),
        (_weighted(_of_positions()), (1, 1), "layer: the gradient is not one product"),
        (_weighted(_of_all_items()), (1, 1), "catalogue: the gradient is not one product"),
        (_weighted(_of(lambda x, k: tf.concat(tf.split(x, 2), 0) @ k)), (1, 1), "layer: the gradient is not one"),
        (_item(), (1, 1), "left, right, last: the gradient is not one product"),
        (replace(_weighted(_item()), handed_in=True), (1, 1), "left, right, last: the gradient is not one product"),
    ],
    ids=[
        "three replicas", "one machine", "bfloat16", "a shared kernel", "transposed", "sequences", "a catalogue",
        "halves of a batch", "weighted later", "a tensor handed in",
    ],
)  # fmt: skip
def test_the_plan_says_why_factors_never_travel(item, cpus, said):
    plan, gradients = _plan(item, SENDING, cpus, 8), _bytes_of(_plan(item, AllReduce(factor_rows=0), cpus))
    assert f"factor_rows has no effect on {said}" in plan
    for name in said.partition(":")[0].split(", "):
        assert _bytes_of(plan)[name] == gradients[name]


def test_the_plan_says_that_factors_travel_between_cpus_only():
    plan = _plan(_weighted(_item()), SENDING, (1, 1), 8, "gpus")
    assert "factor_rows has no effect on left, right, last: factors travel between CPUs only" in plan


def test_sizes_of_batches_need_another_graph_where_a_gradient_begins_to_travel():
    for item, cpus, expected in (
        (_weighted(_item()), (1, 1), (100,) * 3), (_weighted(_item()), (2,), ()),
        (_item(), (1, 1), ()),  # these gradients are weighted later
        (_weighted(_of_all_items()), (1, 1), (100,)),  # not the layer over the catalogue
    ):  # fmt: skip
        assert factor_limits(item, placed_on(item, SENDING, *cpus)) == expected


def test_the_graphs_of_two_sizes_share_no_collective():
    """TensorFlow keeps the shape of a collective for the whole session, and the buckets of the two are not alike."""
    item = _weighted(_item())
    keys = []
    for examples in (8, 101):
        builder = AllReduce(factor_rows=100, bucket_bytes=16, all_reduce_spec="RING")
        graph = build(item, placed_on(item, builder, 1, 1), examples=examples).graph_def
        nodes = {node.name: node for node in graph.node}
        sums = nodes_of(graph, "CollectiveReduceV2").values()
        found = (nodes[naming.node_of(each.input[3])].attr["value"].tensor.int_val[0] for each in sums)
        keys.append(set(found))
    assert all(keys) and not keys[0] & keys[1]


@pytest.mark.parametrize("gbit, shape, expected", [(1, (512, 512), 284), (10, (512, 512), 56), (1, (21632, 512), 390)])
def test_the_default_follows_from_kernel_and_network(gbit: float, shape: tuple[int, int], expected: int):
    """Saved bytes at the rate of the link take as long as the products of the other rows at 20 billion operations."""
    kernel = Variable("kernel", shape, "float32")
    found = factor_rows(None, kernel, kernel.byte_size, machines(1, 1, network_bandwidth=gbit))
    assert found == expected
    entries, columns, rate = shape[0] * shape[1], sum(shape), gbit * 1e9 / 8
    saved = np.array([4 * (2 * entries - rows * columns) / rate for rows in (found, found + 1)])
    products = np.array([2 * rows * entries / 2e10 for rows in (found, found + 1)])
    assert saved[0] >= products[0] and saved[1] < products[1]
