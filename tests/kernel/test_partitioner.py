"""Split variables: what is split, what stays whole and why, and that every number is one device's."""

import re
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.kernel import build
from autodist_core.strategy import AllReduce, PartitionedPS
from tests.kernel.graphs import assert_as_one_device, dense_item, machine, nodes_of, placed, table_item
from tests.support.graphs import captured
from tests.support.models import BATCH, BY_NAME, ReferenceModel, even_data, trained_by
from tests.support.strategies import EveryAxis, Mixed
from tests.support.training import assert_equal_training, compiled, distributed, fit

# What the rewritten step says


def test_a_shard_is_a_variable_of_its_own():
    item, placement = dense_item(), placed(dense_item(), PartitionedPS())
    split = placement.partitioner.apply(item)
    assert [str(v) for v in split.variables] == [
        "w : f64[3,2]", "w/part_0 : f64[1,2]", "w/part_1 : f64[1,2]", "w/part_2 : f64[1,2]",
        "b : f64[2]", "b/part_0 : f64[1]", "b/part_1 : f64[1]",
    ]  # fmt: skip
    assert [(v.part_of, v.axis, v.offset) for v in split.variables if v.part_of == "w"] == [
        ("w", 0, 0), ("w", 0, 1), ("w", 0, 2),
    ]
    assert [g.variable for g in split.gradients] == ["w/part_0", "w/part_1", "w/part_2", "b/part_0", "b/part_1"]
    assert GraphItem.deserialize(split.serialize()) == split
    assert placement.partitioner.apply(split) is split


def test_shards_go_to_their_servers_in_turn():
    placement = placed(dense_item(), PartitionedPS())
    owners = {owner.name: sorted(owner.variables) for owner in placement.owners if owner.replica is None}
    for name in ("w", "b"):
        shards = placement.partitioner.plans[name].shards
        planned = {shard.variable.name: shard.synchronizer.destinations[0] for shard in shards}
        assert name == "b" or len(set(planned.values())) == 2
        for part, destination in planned.items():
            assert part in owners[f"server_{destination.replace(':', '_')}"]
    assert sum(map(len, owners.values())) == 5


def test_only_slices_of_a_gradient_travel():
    item = dense_item()
    graph = build(item, placed(item, PartitionedPS())).graph_def
    for node in nodes_of(graph, "AddN").values():
        if node.name.startswith("reduced/"):
            assert all("/part_" in source for source in node.input), node


def test_shards_travel_once_for_the_variable_that_replicas_read():
    item = dense_item()
    placement = placed(item, PartitionedPS())
    graph = build(item, placement).graph_def
    for variable in ("w", "b"):
        assert [copy.name for copy in placement.copies(variable)] == [f"{variable}@replica{index}" for index in (0, 1)]
        for part in placement.parts[variable]:
            (copy,) = placement.copies(part.name)
            handle = f"variable/{copy.name.replace('@', '.')}"
            reads = [n for n, node in nodes_of(graph, "ReadVariableOp").items() if handle in node.input]
            assert len(reads) == 1, part.name


def test_nothing_is_split_in_one_memory_and_for_one_server():
    item = dense_item()
    shared = placed(item, PartitionedPS(), share_memory=True)
    alone = placed(item, PartitionedPS(), machine(cpus=1))
    for partitioner in (shared.partitioner, alone.partitioner):
        assert not partitioner.plans and partitioner.apply(item) is item


# Tables


@pytest.mark.quick("ids0-Mixed()", "ids1-EveryAxis(first=1, shards=2)", "ids2-EveryAxis(first=0, shards=3)")
@pytest.mark.parametrize("builder", [PartitionedPS(), EveryAxis(0, shards=3), EveryAxis(1), Mixed()], ids=str)
@pytest.mark.parametrize("ids", [[[0, 5], [3, 3]], [[2, 2, 2, 2], [1, 4]], [[5, 0], [5, 5], [0, 0, 1, 3, 4, 5]]])
def test_rows_of_a_split_table_equal_one_devices(builder, ids: list):
    batches = [np.array(batch, np.int32).reshape(-1, 2) for batch in ids]
    item = table_item()
    assert_as_one_device(item, placed(item, builder, machine(cpus=3)), batches)


def test_no_replica_has_a_copy_of_a_split_table_and_only_rows_are_read():
    item = table_item()
    placement = placed(item, PartitionedPS())
    assert placement.partitioner.looked_up == {"table"}
    assert placement.copies("table") == ()
    graph = build(item, placement).graph_def
    handles = {name for name in nodes_of(graph, "VarHandleOp") if "table" in name}
    assert handles == {
        f"variable/{shard.variable.name}.server_localhost_CPU_{shard.synchronizer.destinations[0][-1]}"
        for shard in placement.partitioner.plans["table"].shards
    }
    readers = {node.op for node in graph.node if handles & {source.split(":")[0] for source in node.input}}
    assert readers == {"ResourceGather", "ResourceScatterSub"}


def test_reads_that_nothing_needs_bring_no_table_to_the_replicas():
    """The trace of Keras's layer reads the whole table, and then only looks rows up."""
    data = BY_NAME["embedding"].data()
    item = captured(compiled(BY_NAME["embedding"]), data.x, data.y).item
    tables = {variable.name for variable in item.variables if variable.is_sparse}
    placement = placed(item, PartitionedPS())
    assert tables and placement.partitioner.looked_up == tables
    assert [placement.copies(table) for table in tables] == [()] * len(tables)
    reads = nodes_of(build(item, placement).graph_def, "ReadVariableOp")
    assert not [name for name in reads for table in tables if name.startswith(f"pull/0/{table}")]


@pytest.mark.parametrize("builder, wrong", [(AllReduce(), 6), (PartitionedPS(), -1), (PartitionedPS(), 100)], ids=str)
def test_a_row_that_no_shard_has_is_refused_as_by_a_whole_table(builder, wrong: int):
    item = table_item()
    with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        assert_as_one_device(item, placed(item, builder), [np.array([[0, wrong], [1, 2]], np.int32)])


def test_a_prediction_reads_a_split_table():
    def program(front, model):
        data = BY_NAME["embedding"].data()
        front.fit(data.x, data.y, batch_size=BATCH, shuffle=False, verbose=0)
        return [front.predict(data.x, batch_size=5, verbose=0), front.evaluate(data.x, data.y, verbose=0)]

    reference = BY_NAME["embedding"]
    assert_equal_training(reference, program, strategy="PartitionedPS")


# What an update needs


class Centered(keras.optimizers.SGD):
    """Subtracts from each gradient its mean along the first axis."""

    def update_step(self, gradient, variable, learning_rate):
        mean = keras.ops.mean(gradient, axis=0, keepdims=True)
        super().update_step(gradient - mean, variable, learning_rate)


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.02, name="clipped"),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.05, name="clipped"),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, name="accumulated"),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9, name="sgd"), initial_scale=4.0, dynamic_growth_steps=2, name="scaled"
    ),
    "average": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=3, name="s"),
    "decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, name="adamw"),
    "lamb": lambda: keras.optimizers.Lamb(0.01, name="lamb"),
    "adafactor": lambda: keras.optimizers.Adafactor(0.02, name="adafactor"),
    "muon": lambda: keras.optimizers.Muon(0.01, name="muon"),
    "centered": lambda: Centered(0.1, name="centered"),
}
WHOLE = {"muon": ("Sum (", "Transpose ("), "adafactor": ("Mean (",)}


REFERENCES = {name: trained_by(make) for name, make in OPTIMIZERS.items()}


@pytest.mark.quick("clipnorm-PartitionedPS", "loss scale-Mixed")
@pytest.mark.parametrize(
    "name, builder", [(name, ("PartitionedPS", "Mixed")[turn % 2]) for turn, name in enumerate(OPTIMIZERS)]
)
def test_shards_equal_one_device_whatever_stands_around_the_update(name: str, builder: str):
    assert_equal_training(REFERENCES[name], strategy=builder)


@pytest.mark.quick("muon")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_stays_whole_says_which_operation_needs_it(name: str):
    model = compiled(REFERENCES[name])
    with distributed(model, strategy=PartitionedPS()) as front:
        fit(front, epochs=1)
        plan = front.plan()
    splittable = {v.path.partition("/")[2] for v in model.trainable_variables if max(v.shape) > 1}
    kernels = {variable.path.partition("/")[2] for variable in model.trainable_variables if len(variable.shape) == 2}
    rows = {line.split()[0]: line for line in plan.splitlines() if " : " in line}
    split = {variable for variable, row in rows.items() if "split(" in row}
    note = r"note: (\S+) stays whole: (.*) needs all of it \([0-9.]+ [KM]?i?B where it is updated\)"
    whole = dict(re.findall(note, plan))
    assert split | set(whole) == splittable and not split & set(whole)
    assert bool(whole) == (name in WHOLE) and set(whole) <= kernels
    assert all(why.startswith(WHOLE[name]) for why in whole.values())
    assert all(rows[name].count("localhost:CPU") == 1 and "uneven" not in rows[name] for name in whole)


@pytest.mark.quick("EveryAxis-convolution-adagrad")
@pytest.mark.parametrize("model, optimizer", [("lstm", "adam"), ("convolution", "adagrad"), ("embedding", "rmsprop")])
@pytest.mark.parametrize("builder", ["Mixed", "EveryAxis"])
def test_hand_written_splits_equal_one_device(model: str, optimizer: str, builder: str):
    reference = BY_NAME[model]
    assert_equal_training(reference, optimizer=optimizer, strategy=builder, replicas=3)


class Spread(keras.constraints.Constraint):
    """Makes a matrix of a vector on its way to the next value."""

    def __call__(self, weight):
        return keras.ops.sum(weight * keras.ops.reshape(keras.ops.arange(2, dtype=weight.dtype), (2, 1)), axis=0)


def test_an_update_that_leaves_the_variables_shape_keeps_it_whole():
    def build() -> keras.Model:
        out = keras.layers.Dense(5, bias_constraint=Spread(), name="out")
        return keras.Sequential([keras.Input((5,), name="x"), out], name="spread")

    reference = ReferenceModel("spread", build, even_data, lambda: {"loss": "mse"})
    assert_equal_training(reference, strategy="PartitionedPS")
