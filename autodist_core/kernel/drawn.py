"""Let the replicas of a distributed graph take their rows from a data pipeline that runs on their machine.

In: a finished `DistributedGraph`, its replicas, and the machines on which the pipeline runs. Out: the same graph, but
what these machines' replicas are fed is where their rows are. In place of the placeholder of a replica's slice is::

    data/replica1/batch/IteratorGetNext             the batch, once for each machine
    replica1/x = data/replica1/batch/IteratorGetNext[start:stop]

The other replicas are fed as before. What is fed besides is the handle of the machine's iterator, and a sample of the
batch. A machine whose batch has another sample raises an error before anything computes: its data would be another
batch than the other machines'.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import tensorflow as tf

from autodist_core.kernel.pipeline import DistributedGraph
from autodist_core.kernel.placement.placement import Replica
from autodist_core.step.editor import Editor

_OTHER = (
    "The data pipeline of this machine has made another batch than that of the chief. Are its files the same here, and "
    "do its functions give the same results each time? AUTODIST_KEPT_BYTES=0 feeds each batch instead."
)


def sample_of(tensors: Sequence[Any]) -> Any:
    """Fingerprints of the first and the last row of a batch's tensors, one behind the other.

    >>> first, second = (sample_of([tf.constant(rows), tf.constant(["a", "b"])]) for rows in ([1, 2], [1, 3]))
    >>> first.shape, bool(tf.reduce_all(first == sample_of([tf.constant([1, 7, 2]), tf.constant(["a", "b"])])))
    (TensorShape([32]), True)
    >>> bool(tf.reduce_all(first == second))
    False
    """
    rows = [row for tensor in tensors if tensor.shape.rank for row in (tensor[:1], tensor[-1:])]
    flat = [tf.reshape(row, [1, -1]) for row in rows]
    found = [tf.reshape(tf.raw_ops.Fingerprint(data=row, method="farmhash64"), [-1]) for row in flat]
    return tf.concat(found, 0) if found else tf.zeros([0], tf.uint8)


class Compared(Enum):
    """With what a machine compares the sample of the batch that it has made.

    >>> Compared.FED.value
    'a sample that is fed'
    """

    FED = "a sample that is fed"
    FIRST = "the sample of the first machine"
    NOTHING = "nothing, since each machine makes other rows and nobody makes them too"


def drawn(
    graph: DistributedGraph, replicas: Sequence[Replica], hosts: Sequence[str], specs: Sequence[Any],
    components: Sequence[int], compared: Compared = Compared.FED,
) -> DistributedGraph:
    """Return a graph whose replicas on these hosts take rows from an iterator there.

    `specs` are those of a batch's tensors. `components` says which tensor each captured input is, where each component
    of a ragged or sparse tensor is one. The first replica of a host is also fed the handle of the iterator. `compared`
    says whether each replica is fed a sample, too.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.kernel.pipeline import build
    >>> from autodist_core.strategy import PS
    >>> placement = example_placement(PS())
    >>> graph = build(example_step(), placement)
    >>> changed = drawn(
    ...     graph, placement.replicas, [placement.replicas[0].host], [tf.TensorSpec([None, 3])], [0]
    ... )
    >>> changed.feeds[0], {node.name: node.op for node in changed.graph_def.node}["replica0/x"]
    (('feed/replica0/iterator', 'feed/replica0/bounds', 'feed/replica0/sample'), 'EnsureShape')
    """
    if not graph.inputs:
        return graph
    editor, feeds = Editor.of(graph.graph_def), []
    batches: dict[str, list[str]] = {}
    first = ""
    draw = partial(next_of, specs=specs)
    flat = tf.nest.flatten(list(specs), expand_composites=True)
    rows = partial(_rows, specs, [components[index] for index in graph.inputs])
    for replica, names in zip(replicas, graph.feeds, strict=False):
        host = replica.host
        if host not in hosts:
            feeds.append(names)
            continue
        iterator, bounds, sample = (f"feed/{replica.prefix}/{what}" for what in ("iterator", "bounds", "sample"))
        told = (bounds, sample) if compared is Compared.FED else (bounds,)
        if host not in batches:
            told = iterator, *told
            editor.add("Placeholder", iterator, device=host, dtype=tf.string, shape=tf.TensorShape([]))
            batches[host] = editor.trace(
                f"data/{replica.prefix}/batch", draw, {iterator: tf.TensorSpec([], tf.string)}, host
            )
        editor.add("Placeholder", bounds, device=host, dtype=tf.int64, shape=tf.TensorShape([2]))
        feeds.append(told)
        made = dict(zip(batches[host], flat, strict=True))
        if compared is Compared.FED:
            editor.add("Placeholder", sample, device=host, dtype=tf.uint8, shape=tf.TensorShape([None]))
        elif compared is Compared.FIRST:
            first = first or editor.trace("data/sample", lambda *tensors: sample_of(tensors), made, host)[0]
            sample = first
        samples = {} if compared is Compared.NOTHING else {sample: tf.TensorSpec([None], tf.uint8)}
        given = {bounds: tf.TensorSpec([2], tf.int64), **made, **samples}
        sources = editor.trace(f"data/{replica.prefix}", rows, given, host)
        for each, source in zip(names, sources, strict=True):
            shape, dtype = (editor[each].attr[key] for key in ("shape", "dtype"))
            editor.remove([each])
            editor.add("EnsureShape", each, [source], host, T=dtype, shape=shape)
    return replace(graph, graph_def=editor.graph_def(), feeds=tuple(feeds))


def iterator_types(specs: Sequence[Any]) -> dict[str, Any]:
    """The types and shapes in an iterator of batches. A ragged or sparse tensor is packed into one there.

    >>> iterator_types([tf.TensorSpec([None, 3]), tf.SparseTensorSpec([None, 3])])["output_types"]
    [tf.float32, tf.variant]
    """
    dense = [spec if isinstance(spec, tf.TensorSpec) else tf.TensorSpec(None, tf.variant) for spec in specs]
    return {"output_types": [spec.dtype for spec in dense], "output_shapes": [spec.shape for spec in dense]}


def next_of(name: Any, specs: Sequence[Any]) -> list[Any]:
    """The tensors of the next batch of the iterator with this handle; of ragged and sparse ones, the components.

    >>> with tf.Graph().as_default():
    ...     handle = tf.compat.v1.placeholder(tf.string, [])
    ...     [tensor.dtype for tensor in next_of(handle, [tf.TensorSpec([None]), tf.SparseTensorSpec([None, 3])])]
    [tf.float32, tf.int64, tf.float32, tf.int64]
    """
    iterator = tf.compat.v1.data.Iterator.from_string_handle(
        name, tuple(spec.dtype for spec in specs), tuple(spec.shape for spec in specs),
        tuple(tf.Tensor if isinstance(spec, tf.TensorSpec) else spec for spec in specs),
    )
    return list(tf.nest.flatten(iterator.get_next(), expand_composites=True))


def rows_of(tensor: Any, start: Any, stop: Any) -> Any:
    """The rows from `start` to `stop` of a tensor, in a graph. A scalar is the same for all rows.

    >>> rows_of(tf.ragged.constant([[1, 2], [3]]), 1, 2), rows_of(tf.constant([1, 2, 3]), 1, 2).numpy().tolist()
    (<tf.RaggedTensor [[3]]>, [2])
    >>> tf.sparse.to_dense(rows_of(tf.sparse.from_dense([[1, 0], [0, 2]]), tf.constant(1), tf.constant(2))).numpy()
    array([[0, 2]], dtype=int32)
    """
    if isinstance(tensor, tf.SparseTensor):
        start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
        others = tensor.dense_shape[1:]
        begin, size = tf.concat([[start], tf.zeros_like(others)], 0), tf.concat([[stop - start], others], 0)
        return tf.sparse.slice(tensor, begin, size)
    return tensor[start:stop] if tensor.shape.rank else tf.identity(tensor)


def _rows(specs: Sequence[Any], wanted: Sequence[int], bounds: Any, *given: Any) -> list[Any]:
    """A replica's rows of these tensors of a batch, if the batch is the one whose sample may follow the tensors."""
    many = len(tf.nest.flatten(list(specs), expand_composites=True))
    tensors, samples = given[:many], given[many:]
    # Samples of other lengths are not equal either.
    same = [tf.raw_ops.Equal(x=sample_of(tensors), y=sample, incompatible_shape_error=False) for sample in samples]
    checked = [tf.raw_ops.Assert(condition=tf.reduce_all(each), data=[_OTHER]) for each in same]
    with tf.control_dependencies(checked):
        batch = tf.nest.pack_sequence_as(list(specs), list(map(tf.identity, tensors)), expand_composites=True)
        cut = tf.nest.flatten([rows_of(tensor, bounds[0], bounds[1]) for tensor in batch], expand_composites=True)
        return [cut[index] for index in wanted]
