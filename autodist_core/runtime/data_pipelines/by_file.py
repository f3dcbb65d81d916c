"""A dataset of files of which each machine reads a part: `AutoShardPolicy.FILE`, and `HINT`.

In: a dataset, and how many rows of each batch each machine has. Out: the dataset through which the user's process may
go, and for each machine one that makes the machine's rows only. TensorFlow's own rewriting chooses the files::

    shard 0 of the dataset, row by row --+
                                         +-- as the batch's rows say: 0 0 0 0 1 1 -- batches of 6 rows
    shard 1 of the dataset, row by row --+

The dataset of machine 1 differs in two constants: it asks for shard 1 at each row, and has batches of 2 rows. It never
asks for shard 0, so nothing of it is read. Since both have the same structure, the state of one's iterator is a state
of the other's too: machines begin where the iterator of the user's process is.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import amount
from autodist_core.runtime.data_pipelines.batches import Share
from autodist_core.runtime.data_pipelines.graphs import dataset_of, graph_of, with_own_resources

_POLICY = tf.data.experimental.AutoShardPolicy


def is_by_file(dataset: Any) -> bool:
    """Whether its options ask that each machine reads its own part of the files.

    >>> is_by_file(tf.data.Dataset.range(3))
    False
    """
    return dataset.options().experimental_distribute.auto_shard_policy in (_POLICY.FILE, _POLICY.HINT)


def by_file(dataset: Any, rows: Sequence[int], policy: Any) -> tuple[Any, tuple[Share, ...]]:
    """The dataset over the shards, and what each machine makes: its rows of a batch, by a dataset of its own.

    Each batch has `sum(rows)` rows, so a last batch with fewer is left out. The data end with the shard that ends
    first. A ValueError says why there are no shards.

    >>> by_file(tf.data.Dataset.range(6).batch(2), [1, 1], tf.data.experimental.AutoShardPolicy.HINT)
    Traceback (most recent call last):
    ValueError: TensorFlow finds no shard(SHARD_HINT, SHARD_HINT) in it that machines could share out
    """
    _require_rows(dataset, rows)
    graphs = [_shard(dataset, policy, len(rows), machine) for machine in range(len(rows))]
    _require_apart(graphs, policy)
    # Without generators of their own, the shards would take the seeds of an epoch from each other.
    shards = [dataset_of(with_own_resources(graph), dataset.element_spec).unbatch() for graph in graphs]
    machines: np.ndarray = np.repeat(np.arange(len(rows)), rows)
    shares = []
    for machine, stop in enumerate(accumulate(rows)):
        own = graph_of(_joined(shards, np.full_like(machines, machine), rows[machine]))
        shares.append(Share(stop - rows[machine], stop, with_own_resources(own).SerializeToString()))
    return _joined(shards, machines, len(machines)), tuple(shares)


def batch_size(dataset: Any) -> int | None:
    """The number of examples of a dataset's batches; None if TensorFlow does not know it.

    >>> batch_size(tf.data.Dataset.range(7).batch(3).prefetch(1)), batch_size(tf.data.Dataset.range(7))
    (3, None)
    """
    size = int(tf.raw_ops.ComputeBatchSize(input_dataset=tf.data.experimental.to_variant(dataset)))
    return size if size > 0 else None


def _require_rows(dataset: Any, rows: Sequence[int]) -> None:
    specs = tf.nest.flatten(dataset.element_spec)
    if not all(isinstance(spec, tf.TensorSpec) and spec.shape[1:].is_fully_defined() for spec in specs):
        raise ValueError("its batches are not dense tensors whose rows have known shapes")
    if not min(rows):
        raise ValueError(f"a batch of {amount(sum(rows), 'example')} leaves a machine without rows")


def _shard(dataset: Any, policy: Any, machines: int, machine: int) -> Any:
    """The graph of the batches of one machine's files."""
    specs = tf.nest.flatten(dataset.element_spec)
    try:
        variant = tf.raw_ops.AutoShardDataset(
            input_dataset=tf.data.experimental.to_variant(dataset), num_workers=machines, index=machine,
            auto_shard_policy=int(policy), num_replicas=0,
            output_types=[spec.dtype for spec in specs], output_shapes=[spec.shape for spec in specs],
        )  # fmt: skip
    except tf.errors.OpError:
        # TensorFlow's message is the dataset's node, over many lines.
        raise _nothing_to_share_out(policy) from None
    return graph_of(tf.data.experimental.from_variant(variant, dataset.element_spec))


def _require_apart(graphs: Sequence[Any], policy: Any) -> None:
    """Raise a ValueError if TensorFlow has left the dataset as it is, so that each machine would read all of it."""
    first, *others = map(_without_metadata, graphs)
    if first in others:
        raise _nothing_to_share_out(policy)


def _nothing_to_share_out(policy: Any) -> ValueError:
    found = "shard(SHARD_HINT, SHARD_HINT)" if policy == _POLICY.HINT else "files"
    return ValueError(f"TensorFlow finds no {found} in it that machines could share out")


def _without_metadata(graph: Any) -> list[Any]:
    """The nodes of a graph, without the numbers that datasets have in this process."""
    return [
        (node.name, node.op, [*node.input], {key: str(node.attr[key]) for key in node.attr if key != "metadata"})
        for node in graph.node
    ]


def _joined(shards: Sequence[Any], machines: np.ndarray, size: int) -> Any:
    """Batches of this size, whose rows come from these machines' shards in turn."""
    turns = tf.data.Dataset.from_tensor_slices(machines.astype("int64")).repeat()
    joined = tf.data.Dataset.choose_from_datasets(shards, turns, stop_on_empty_dataset=True)
    # TensorFlow would prefetch behind the batches, and the state would have whole batches of the user's process.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return joined.batch(size, drop_remainder=True).with_options(options)
