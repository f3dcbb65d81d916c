"""Parts of variables that machines write, and the values that the program reads."""

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.kernel.placement.placement import Copy
from autodist_core.runtime import written_parts
from autodist_core.runtime.large_reads import handle_of
from autodist_core.runtime.recovery import on_disk
from autodist_core.runtime.written_parts import WrittenParts, read_parts
from autodist_core.step.graph_item import Variable


def written(session: tf.compat.v1.Session, variable: Variable, value: np.ndarray, cuts: list[int], path: str) -> bool:
    """Give the shards of a variable their entries, and write them."""
    sources = []
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, variable.shape[variable.axis]], strict=True)):
        shape = list(variable.shape)
        shape[variable.axis] = end - begin
        name = f"{variable.name}/part_{number}"
        shard = Variable(name, shape, variable.dtype, part_of=variable.name, axis=variable.axis, offset=begin)
        sources.append((shard, Copy(shard.name, "/device:CPU:0")))
        with session.graph.as_default():
            session.run(tf.raw_ops.AssignVariableOp(resource=handle_of(*sources[-1]), value=shard.entries_of(value)))
    parts = WrittenParts(session, lambda doing, call, *arguments: call(*arguments))
    return parts.write(path, {variable.name: (variable, sources)})


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_is_read_is_what_was_written(axis: int, dtype: str, tmp_path, monkeypatch):
    """In many pieces, of which a file has several, and not all are cut where those are cut that are read."""
    monkeypatch.setattr(written_parts, "PIECE_BYTES", 300)
    monkeypatch.setattr(on_disk, "HUGE_BYTES", 1 << 10)
    value = np.random.default_rng(axis).integers(0, 99, (11, 13, 7)).astype(tf.as_dtype(dtype).as_numpy_dtype)
    one, other = (Variable(name, value.shape, dtype, axis=axis) for name in ("kernel:1/a b", "table"))
    session = tf.compat.v1.Session(graph=tf.Graph())
    assert written(session, one, value, [2, 3], str(tmp_path / "one"))
    assert written(session, other, value[::-1], [], str(tmp_path / "other"))
    session.close()
    (found,) = read_parts(str(tmp_path / "one"), [one])
    assert found.dtype == value.dtype and found.tobytes() == value.tobytes()
    (found,) = read_parts(str(tmp_path / "other"), [other])
    assert found.tobytes() == value[::-1].tobytes()
    assert not [path for path in tmp_path.iterdir() if "part-" in path.name]


@pytest.mark.parametrize("dtype", ["float16", "uint16", "uint32", "uint64", "int4", "float8_e4m3fn"])
def test_types_that_are_not_joined_pass_through_the_program(dtype: str):
    there, here = (f"/job:run/replica:0/task:{task}/device:CPU:0" for task in (1, 0))
    takes = [WrittenParts.takes(large, [(large, Copy("w", there))], here) for large in (
        Variable("w", (1 << 20, 8), dtype), Variable("w", (1 << 20, 8), "float32"),
    )]  # fmt: skip
    assert takes == [False, True]


def test_nothing_is_read_of_no_variables():
    assert read_parts("nowhere", []) == []
