"""Looking rows up in a table that is split: each shard is asked for the rows it holds, and for no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from autodist_core.step.editor import Editor
from autodist_core.strategy.compiled import Shard, VariablePlan


@dataclass(frozen=True)
class Ids:
    """The tensor of row numbers that are looked up."""

    name: str
    dtype: tf.DType
    shape: tuple[int, ...] | None


def look_up(
    graph: Editor, ids: Ids, plan: VariablePlan, shape: tuple[int, ...], name: str, dtype: tf.DType,
    gather: Callable[[int, str], str],
) -> None:
    """Add a lookup under a name; `gather` adds that of a shard, given its index and the tensor of its rows' numbers."""
    count, axis = len(plan.shards), plan.axis or 0
    rows_spec = tf.TensorSpec(None, dtype)
    if axis:
        rows = [gather(index, ids.name) for index in range(count)]
        joined = graph.trace(f"{name}/joined", _side_by_side(axis - len(shape)), dict.fromkeys(rows, rows_spec))[0]
    else:
        ids_spec = tf.TensorSpec(ids.shape, ids.dtype)
        found = graph.trace(f"{name}/asked", _asked_of(plan.shards), {ids.name: ids_spec})
        asked, places = found[:count], found[count:]
        rows = [gather(index, wanted) for index, wanted in enumerate(asked)]
        specs = dict.fromkeys(places, tf.TensorSpec(None, tf.int32)) | {ids.name: ids_spec}
        joined = graph.trace(f"{name}/joined", _in_order(count, shape), specs | dict.fromkeys(rows, rows_spec))[0]
    graph.add("Identity", name, [joined], T=dtype)


def _asked_of(shards: tuple[Shard, ...]) -> Callable[..., Any]:
    """For each shard the rows asked of it, counted from its first; then, for each, where in the answer they belong.

    What no shard holds is asked of the first or the last one, which refuses it as the whole table would.
    """

    def asked(ids: Any) -> list[Any]:
        flat = tf.reshape(ids, [-1])
        starts = tf.constant([shard.offset for shard in shards], flat.dtype)
        shard_of = tf.reduce_sum(tf.cast(flat[:, None] >= starts[None, 1:], tf.int32), axis=1)
        wanted = tf.dynamic_partition(flat, shard_of, len(shards))
        places = tf.dynamic_partition(tf.range(tf.size(flat)), shard_of, len(shards))
        return [rows - starts[index] for index, rows in enumerate(wanted)] + places

    return asked


def _in_order(count: int, shape: tuple[int, ...]) -> Callable[..., Any]:
    def joined(*tensors: Any) -> Any:
        places, ids, rows = tensors[:count], tensors[count], tensors[count + 1 :]
        flat = tf.dynamic_stitch(list(places), list(rows))
        # Where nothing is asked for, nothing says how wide a row is.
        return tf.reshape(flat, tf.concat([tf.shape(ids), tf.constant(shape[1:], tf.int32)], axis=0))

    return joined


def _side_by_side(axis: int) -> Callable[..., Any]:
    return lambda *rows: tf.concat(rows, axis=axis)
