"""Values of each replica: made of a batch, looked at one by one, reduced, and gathered.

In: a batch, or the results of a function on each replica. Out: TensorFlow's `PerReplica` values, or tensors. The
functions work outside a trace and inside one.

>>> both = per_replica([tf.constant([1.0, 2.0]), tf.constant([4.0])])
>>> [each.numpy().tolist() for each in local_results(both)]
[[1.0, 2.0], [4.0]]
>>> reduced("SUM", both, 0, 2).numpy().item(), gathered(both, 0).numpy().tolist()
(7.0, [1.0, 2.0, 4.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.seams.table import PER_REPLICA, PER_REPLICA_SPEC


def per_replica(values: Sequence[Any]) -> Any:
    """One value for each replica; a single replica's value is that value."""
    return values[0] if len(values) == 1 else PER_REPLICA.get()(tuple(values))


def per_replica_spec(specs: Sequence[Any]) -> Any:
    """The spec of a value with one value for each replica.

    >>> spec = per_replica_spec([tf.TensorSpec([None], tf.float32)] * 2)
    >>> spec.is_compatible_with(per_replica([tf.ones([2]), tf.ones([1])]))
    True
    """
    return specs[0] if len(specs) == 1 else PER_REPLICA_SPEC.get()(*specs)


def is_per_replica(value: Any) -> bool:
    """Whether a value is one for each replica.

    >>> is_per_replica(tf.constant(1.0))
    False
    """
    return isinstance(value, PER_REPLICA.get())


def split(batch: Any, replicas: int) -> Any:
    """A batch as values of each replica: slices along the first axis, as `numpy.array_split` cuts them.

    >>> [each.numpy().tolist() for each in local_results(split(tf.range(5), 2))]
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
                f"a dataset's element has a {tensor.dtype.name} without axes. Every part of an element is a batch, "
                "with one row for each example: batch the dataset (dataset.batch(global_batch_size))."
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


def local_results(value: Any) -> tuple[Any, ...]:
    """The value of each replica, in order."""
    return tuple(value.values) if is_per_replica(value) else (value,)


def reduced(op: Any, value: Any, axis: Any, replicas: int) -> Any:
    """One tensor of all replicas' values: their sum or mean; with an axis, of the entries along the axis, too.

    Several axes are a tuple. Another tensor, or a number, is the value of every replica.
    """
    name = _name_of(op)
    if not is_per_replica(value):
        return _reduced_one(name, value, axis, replicas)
    parts = [tf.convert_to_tensor(part) for part in value.values]
    if axis is None:
        total = tf.add_n(parts)
        return total if name == "SUM" else total / tf.cast(replicas, total.dtype)
    total = tf.add_n([tf.reduce_sum(part, axis) for part in parts])
    if name == "SUM":
        return total
    axes = tf.reshape(tf.constant(axis, tf.int32), [-1])
    count = tf.add_n([tf.reduce_prod(tf.gather(tf.shape(part), axes % tf.rank(part))) for part in parts])
    return total / tf.cast(count, total.dtype)


def _reduced_one(name: str, value: Any, axis: Any, replicas: int) -> Any:
    if axis is not None:
        total = tf.reduce_sum(value, axis)
        return total * tf.cast(replicas, total.dtype) if name == "SUM" else tf.reduce_mean(value, axis)
    if name == "SUM" and replicas > 1:
        raise ValueError(
            f"reduce(SUM): {value!r} is not a value of each replica, so there is nothing to add up. Pass what run() "
            "returned."
        )
    return value


def _name_of(op: Any) -> str:
    name = str(getattr(op, "name", op)).upper()
    if name not in ("SUM", "MEAN"):
        raise ValueError(f"reduce: the operation is tf.distribute.ReduceOp.SUM or MEAN. Received: {op!r}.")
    return name


def gathered(value: Any, axis: int) -> Any:
    """The values of all replicas, one behind the other along an axis."""
    return tf.concat(list(local_results(value)), axis)


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
