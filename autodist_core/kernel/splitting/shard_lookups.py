"""Look rows up in a split table: each shard is asked only for the rows that it has.

In: a lookup of ids, and the shards of the table. Out: nodes with the looked-up rows, in the order of the ids. For two
shards of two rows each::

    ids [3, 0, 2]  ->  part_0: [0]        rows of ids 0
                       part_1: [1, 0]     rows of ids 3 and 2
                       DynamicStitch      rows of ids 3, 0, 2

With two shards on one server, whose row of id `n` has the value `10 * n`:

>>> from autodist_core.step.graph_item import Variable
>>> from autodist_core.strategy.synchronizers import PSPlan
>>> server = PSPlan(("10.0.0.1:CPU:0",))
>>> table = Variable("table", (4, 1), "float32")
>>> shards = [VariablePlan(table.part(at, 0, 2 * at, 2, ""), server) for at in range(2)]
>>> plan = VariablePlan(table, server, tuple(shards))
>>> graph = Editor()
>>> names = [graph.constant("ids", [3, 0, 2], tf.int32), graph.constant("axis", 0, tf.int32)]
>>> names += [graph.constant(f"part_{at}", [[20.0 * at], [20.0 * at + 10]], tf.float32) for at in range(2)]
>>> def gather(index, rows):
...     types = {"Tparams": tf.float32, "Tindices": tf.int32, "Taxis": tf.int32, "batch_dims": 0}
...     return graph.add("GatherV2", f"found/{index}", [f"part_{index}", rows, "axis"], **types)
>>> look_up(graph, "ids", tf.TensorSpec((3,), tf.int32), plan, "rows", gather)
>>> with tf.compat.v1.Session(graph=tf.Graph()) as session:
...     tf.graph_util.import_graph_def(graph.graph_def(), name="")
...     print(session.run("rows:0").tolist())
[[30.0], [0.0], [20.0]]
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.step.editor import Editor
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import VariablePlan


def lookups_refused(step: StepIndex, looked_up: Collection[str]) -> Iterator[CaptureError]:
    """Yield an error for each read of these tables that shards cannot answer.

    >>> from autodist_core import GraphItem
    >>> list(lookups_refused(StepIndex(GraphItem(())), {"table"}))
    []
    """
    for name, touched in step.touches.items():
        node, tables = step.nodes[name], [touch.variable for touch in touched if touch.variable in looked_up]
        if not tables or step.is_update(name) or node.op == "ReadVariableOp":
            continue
        if node.op != "ResourceGather" or node.attr["batch_dims"].i:
            yield CaptureError(
                f"{name!r} ({node.op}) reads {tables[0]!r} otherwise than by looking up rows or reading all of it, and "
                "the variable is split over servers. Leave it whole, or use AllReduce for it."
            )


def look_up(
    graph: Editor, ids: str, ids_spec: tf.TensorSpec, plan: VariablePlan, name: str, gather: Callable[[int, str], str]
) -> None:
    """Add a lookup of the row numbers `ids` under this name.

    `gather` adds a lookup in one shard, from its index and a tensor of row numbers.
    """
    count, axis, shape = len(plan.shards), plan.axis, plan.variable.shape
    dtype = tf.as_dtype(plan.variable.dtype)
    rows_spec = tf.TensorSpec(None, dtype)
    if axis:
        rows = [gather(index, ids) for index in range(count)]
        specs = dict.fromkeys(rows, rows_spec)
        joined = graph.trace(f"{name}/joined", lambda *found: tf.concat(found, axis - len(shape)), specs)[0]
    else:
        found = graph.trace(f"{name}/asked", _asked_of(plan.shards), {ids: ids_spec})
        asked, places = found[:count], found[count:]
        rows = [gather(index, wanted) for index, wanted in enumerate(asked)]
        specs = dict.fromkeys(places, tf.TensorSpec(None, tf.int32)) | {ids: ids_spec}
        joined = graph.trace(f"{name}/joined", _in_order(count, shape), specs | dict.fromkeys(rows, rows_spec))[0]
    graph.add("Identity", name, [joined], T=dtype)


def _asked_of(shards: tuple[VariablePlan, ...]) -> Callable[..., Any]:
    """Return a function from ids to each shard's row numbers, and to their positions in the answer.

    Row numbers of a shard start at its first row. An id that no shard has goes to the first or the last shard, whose
    lookup raises the error that a lookup in the whole table would raise.
    """

    def asked(ids: Any) -> list[Any]:
        flat = tf.reshape(ids, [-1])
        starts = tf.constant([shard.variable.offset for shard in shards], flat.dtype)
        shard_of = tf.reduce_sum(tf.cast(flat[:, None] >= starts[None, 1:], tf.int32), axis=1)
        wanted = tf.dynamic_partition(flat, shard_of, len(shards))
        places = tf.dynamic_partition(tf.range(tf.size(flat)), shard_of, len(shards))
        return [rows - starts[index] for index, rows in enumerate(wanted)] + places

    return asked


def _in_order(count: int, shape: tuple[int, ...]) -> Callable[..., Any]:
    def joined(*tensors: Any) -> Any:
        places, ids, rows = tensors[:count], tensors[count], tensors[count + 1 :]
        flat = tf.dynamic_stitch(list(places), list(rows))
        # With no ids at all, the stitched rows have no width: the shape of the variable gives it.
        return tf.reshape(flat, tf.concat([tf.shape(ids), tf.constant(shape[1:], tf.int32)], axis=0))

    return joined
