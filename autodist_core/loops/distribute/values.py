"""Values of each replica: made of a batch, looked at one by one, reduced, and gathered.

In: a batch, or the results of a function on each replica. Out: TensorFlow's `PerReplica` values, or tensors. The
functions work outside a trace and inside one.

>>> both = per_replica([tf.constant([1.0, 2.0]), tf.constant([4.0])])
>>> [each.numpy().tolist() for each in local_results(both, 2)]
[[1.0, 2.0], [4.0]]
>>> reduced("SUM", both, 0, 2).numpy().item(), gathered(both, 0, 2).numpy().tolist()
(7.0, [1.0, 2.0, 4.0])
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.loops.calls import received
from autodist_core.seams.table import PER_REPLICA


def per_replica(values: Sequence[Any]) -> Any:
    """One value for each replica; a single replica's value is that value."""
    return values[0] if len(values) == 1 else PER_REPLICA.get()(tuple(values))


def split(batch: Any, replicas: int) -> Any:
    """A batch as values of each replica: slices along the first axis, as `numpy.array_split` cuts them.

    >>> [each.numpy().tolist() for each in split(tf.range(5), 2).values]
    [[0, 1, 2], [3, 4]]
    """

    for part in tf.nest.flatten(batch):
        if isinstance(part, tf.RaggedTensor | tf.SparseTensor):
            raise ValueError(
                f"a dataset's element has a {type(part).__name__}, which cannot be split over replicas yet. Make it "
                "dense in the dataset's map (to_tensor, sparse.to_dense)."
            )

    def slices(tensor: Any) -> Any:
        tensor = tf.convert_to_tensor(tensor)
        if not tensor.shape.rank:
            raise ValueError(
                f"a dataset's element has a tensor of {tensor.dtype.name} without axes. Every part of an element is a "
                "batch, with one row for each example: batch the dataset (dataset.batch(global_batch_size))."
            )
        total = tf.shape(tensor)[0]
        size, extra = total // replicas, total % replicas
        sizes = size + tf.cast(tf.range(replicas) < extra, tf.int32)
        return per_replica(tf.split(tensor, sizes, num=replicas))

    sizes = {shape[0] for shape in (tf.convert_to_tensor(part).shape for part in tf.nest.flatten(batch)) if shape.rank}
    known = sorted(sizes - {None})
    if len(known) > 1:
        raise ValueError(
            f"the parts of a dataset's element have {' and '.join(map(str, known))} rows. Every part of an element is "
            "a batch, with one row for each example: batch the dataset (dataset.batch(global_batch_size))."
        )
    return tf.nest.map_structure(slices, batch)


def local_results(value: Any, replicas: int) -> tuple[Any, ...]:
    """The value of each replica, in order. A structure of values gives a structure for each replica.

    >>> local_results({"both": per_replica([1.0, 2.0]), "same": 3.0}, 2)
    ({'both': 1.0, 'same': 3.0}, {'both': 2.0, 'same': 3.0})
    """
    method = "experimental_local_results"
    if not tf.nest.is_nested(value):
        return received.parts(method, value, replicas) or (value,)
    leaves = [received.parts(method, leaf, replicas) or (leaf,) * replicas for leaf in tf.nest.flatten(value)]
    return tuple(tf.nest.pack_sequence_as(value, [each[index] for each in leaves]) for index in range(replicas))


def reduced(op: Any, value: Any, axis: Any, replicas: int, method: str = "reduce") -> Any:
    """One tensor of all replicas' values: their sum or mean; with an axis, of the entries along the axis, too.

    Several axes are a tuple. Another tensor, or a number, is the value of every replica.
    """
    name, parts = received.operation(method, op), received.parts(method, value, replicas)
    if parts is None and axis is None:
        if name == "SUM" and replicas > 1:
            raise ValueError(
                f"{method}(SUM): {value!r} is not a value of each replica, so there is nothing to add up. Pass what "
                "run() returned."
            )
        return value
    parts = tuple(received.tensor(method, part, numeric=True) for part in parts or [value] * replicas)
    if axis is None:
        received.require_alike(method, parts, remedy="With an axis, the entries along it are reduced, too.")
        total = tf.add_n(parts)
        return total if name == "SUM" else total / tf.cast(replicas, total.dtype)
    axes = received.axes(method, axis, parts[0].shape.rank)
    total = tf.add_n([tf.reduce_sum(part, axes) for part in parts])
    return total if name == "SUM" else total / tf.cast(tf.add_n([entries(part, axes) for part in parts]), total.dtype)


def entries(value: Any, axes: Sequence[int]) -> Any:
    """The number of entries of a tensor along axes.

    >>> int(entries(tf.zeros([2, 3, 5]), (0, -1)))
    10
    """
    return tf.reduce_prod(tf.gather(tf.shape(value), tf.constant(axes, tf.int32) % tf.rank(value)))


def gathered(value: Any, axis: Any, replicas: int) -> Any:
    """The values of all replicas, one behind the other along an axis."""
    parts = received.parts("gather", value, replicas) or (value,)
    tensors = [received.tensor("gather", part) for part in parts]
    along = received.axis("gather", axis, tensors[0].shape.rank)
    received.require_alike("gather", tensors, without=along)
    return tf.concat(tensors, along)


def filled_up(values: Sequence[Any], replicas: int, spec: tf.TensorSpec, otherwise: Any = None) -> list[Any]:
    """The tensors of all replicas. One that took no part has the value `otherwise`.

    Without such a value it has zeros, without entries along unknown axes.

    >>> [each.shape for each in filled_up([tf.ones([2, 3])], 2, tf.TensorSpec([None, 3]))]
    [TensorShape([2, 3]), TensorShape([0, 3])]
    """
    tensors = [tf.convert_to_tensor(value, spec.dtype) for value in values]
    if otherwise is not None:
        return tensors + [tf.convert_to_tensor(otherwise, spec.dtype)] * (replicas - len(tensors))
    shape = [size or 0 for size in spec.shape.as_list()] if spec.shape.rank is not None else tensors[0].shape
    return tensors + [tf.zeros(shape, spec.dtype)] * (replicas - len(tensors))
