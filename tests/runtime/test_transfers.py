"""Variables go in and out of a session whole, however small its messages are."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.kernel.placement.devices import Tasks
from autodist_core.kernel.placement.placement import Copy
from autodist_core.kernel.placement.placing import inference
from autodist_core.runtime import transfers
from autodist_core.runtime.large_reads import LargeReads, handle_of
from autodist_core.step.graph_item import Variable


def test_pieces_cover_every_row_once_and_fit_into_messages():
    variable = Variable("table", (1000, 8), "float32")
    found = list(transfers.pieces(variable, 4096))
    assert [piece.start for piece in found[1:]] == [piece.stop for piece in found[:-1]]
    assert (found[0].start, found[-1].stop) == (0, 1000) and all(piece.size <= 4096 for piece in found)
    small = [transfers.Piece(Variable(f"v{index}", (8,), "float32")) for index in range(10)]
    assert [len(message) for message in transfers.messages([*small, *found[:2]], 4096)] == [10, 1, 1]


@pytest.mark.parametrize("hosts, expected", [
    ((1, 1, 2, 2, 3, 3), [("0", "1"), ("1", "2")]), ((2, 1, 3, 2, 1, 3), [("0", "1"), ("1", "2")]),
], ids=["in order", "mixed"])
def test_a_chain_sends_from_one_machine_to_the_next(hosts, expected):
    """Each machine gets the value once, in whatever order its copies stand."""
    names = tuple(f"10.0.0.{host}:CPU:{hosts[:place].count(host)}" for place, host in enumerate(hosts))
    placement = inference(names, Tasks("run", ("10.0.0.1", "10.0.0.2", "10.0.0.3")))
    graph, variable = tf.Graph(), Variable("v", (4,), "float32")
    with tf.compat.v1.Session(graph=graph) as session, pytest.raises(tf.errors.InvalidArgumentError, match="/job:run"):
        moving = transfers.Transfers(session, placement, lambda doing, call, *arguments: call(*arguments))
        moving.load([variable], {"v": np.zeros(4, "float32")})  # the machines are not there
    crossing = [
        (source.device, node.device)
        for node in graph.get_operations() for source in (tensor.op for tensor in node.inputs)
        if node.type != "AssignVariableOp" and source.device != node.device
    ]
    tasks = [tuple(device.split("task:")[1][0] for device in pair) for pair in crossing]
    assert tasks == expected
    assert np.unique([node.device for node in graph.get_operations() if node.type == "AssignVariableOp"]).size == 6


@pytest.mark.parametrize("piece_bytes", [1 << 16, 1 << 28], ids=["loaded by rows", "read by rows"])
def test_a_variable_that_was_moved_by_rows_is_read_in_place(monkeypatch, piece_bytes):
    """After a write or a gather of rows, TensorFlow would copy the whole variable at each read, and at each update."""
    monkeypatch.setattr(transfers, "PIECE_BYTES", piece_bytes)
    placement = inference(("10.0.0.1:CPU:0",), Tasks("localhost", ("10.0.0.1",)))
    graph, table, traced = tf.Graph(), Variable("table", (1000, 200), "float32"), tf.compat.v1.RunMetadata()
    with tf.compat.v1.Session(graph=graph) as session:
        moving = transfers.Transfers(session, placement, lambda doing, call, *arguments: call(*arguments))
        moving.load([table], {"table": np.ones(table.shape, "float32")})
        if piece_bytes > table.byte_size:
            assert dict(moving.read_each([table]))["table"].sum() == 200000
        with graph.as_default():
            read = tf.raw_ops.ReadVariableOp(resource=handle_of(table, placement.copies("table")[0]), dtype=tf.float32)
            total = tf.reduce_sum(read)
        options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        assert session.run(total, options=options, run_metadata=traced) == 200000
    nodes = {node.node_name: node for device in traced.step_stats.dev_stats for node in device.node_stats}
    assert sum(memory.total_bytes for memory in nodes[read.op.name].memory) < table.byte_size


def test_a_message_asks_each_piece_once_for_its_size():
    """There are as many pieces as a model has variables: thousands, at times."""
    asked = []

    @dataclass(frozen=True)
    class Counted(transfers.Piece):
        @property
        def size(self) -> int:
            asked.append(self)
            return 8

    found = [Counted(Variable(f"v{index}", (2,), "float32")) for index in range(100)]
    assert [len(message) for message in transfers.messages(found, 8 * 40)] == [40, 40, 20]
    assert asked == found


def test_large_variables_are_read_in_parts_from_whole_copies_and_from_shards():
    """Parts end anywhere, shards along a later axis are not of one piece, and each type has readers of its own."""
    shapes = {
        "whole": ((1001, 701), "float64"), "long_row": ((2, 300000), "float64"), "rows": ((900, 501), "float16"),
        "columns": ((3, 400, 900), "float64"),
    }
    whole = {name: Variable(name, *shape) for name, shape in shapes.items()}
    shards = {
        "rows": [((501, 501), 0, 0), ((399, 501), 0, 501)],
        "columns": [((3, 400, 1), 2, 0), ((3, 400, 599), 2, 1), ((3, 400, 300), 2, 600)],
    }
    rng, graph = np.random.default_rng(1), tf.Graph()
    values = {name: rng.normal(size=shape).astype(dtype) for name, (shape, dtype) in shapes.items()}
    wanted, assigned = {
        name: (whole[name], ((whole[name], Copy(f"{name}@0", "/device:CPU:1")),)) for name in ("whole", "long_row")
    }, []
    for name, found in shards.items():
        parts = [
            Variable(f"{name}/part_{index}", shape, whole[name].dtype, part_of=name, axis=axis, offset=offset)
            for index, (shape, axis, offset) in enumerate(found)
        ]
        wanted[name] = whole[name], tuple((part, Copy(part.name, f"/device:CPU:{part.offset % 2}")) for part in parts)
    with tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"CPU": 2})) as session:
        for name, (_, sources) in wanted.items():
            for part, copy in sources:
                rows = slice(part.offset, part.offset + part.shape[part.axis])
                value = values[name][(slice(None),) * part.axis + (rows,)]
                with tf.device(copy.device):
                    assigned.append(tf.raw_ops.AssignVariableOp(resource=handle_of(part, copy), value=value))
        session.run(assigned)
        reads = LargeReads(session, lambda doing, call, *arguments: call(*arguments))
        assert all(reads.takes(*each) for each in wanted.values())
        for _ in range(2):
            found = dict(reads.read_each(wanted))
            assert all(np.array_equal(found[name], value) for name, value in values.items())
        missing = Variable("missing", (900, 900), "float64")
        with pytest.raises(tf.errors.NotFoundError, match="missing"):
            dict(reads.read_each(wanted | {"missing": (missing, ((missing, Copy("missing@0", "/device:CPU:0")),))}))
