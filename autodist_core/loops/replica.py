"""What `tf.distribute.get_replica_context()` returns in a function that is traced for all replicas.

In: a trace. Out: a context whose `all_reduce` adds values up over the replicas. Layers of Keras that are synchronized,
such as batch normalization, call it. In a marked function, the numbers are those of one device::

    context.all_reduce("SUM", total)     the sum over the whole batch
    context.all_reduce("MEAN", mean)     the mean over the whole batch: each example counts once
    context.all_gather(rows, axis=0)     the rows of the whole batch
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.loops.calls import received
from autodist_core.loops.inside import Inside


class Replica(tf.distribute.ReplicaContext):
    """The context of one trace, which stands for every replica. `part_of_mean` is what one adds to the mean of a value.

    `merge_call` calls its function in place, and what the function reduces is all-reduced. TensorFlow's optimizers of
    `compat.v1` apply their gradients so.

    >>> from autodist_core import AutoDist
    >>> with AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}) as distributed:
    ...     @distributed.function
    ...     def everything(x):
    ...         context = tf.distribute.get_replica_context()
    ...         print(isinstance(context, Replica))
    ...         return context.all_reduce("SUM", tf.reduce_sum(x))
    ...     print(float(everything(tf.constant([1.0, 2.0, 3.0]))))
    True
    6.0
    """

    def __init__(self, strategy: Any, replica: Any, inside: Inside, part_of_mean: Callable[[Any], Any]) -> None:
        super().__init__(strategy, replica)
        self._inside, self._part_of_mean = inside, part_of_mean

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum or the mean over the replicas; it can be differentiated."""
        del options
        name = received.operation("all_reduce", reduce_op)
        return tf.nest.map_structure(lambda each: self._reduced(name, each), value)

    def _reduced(self, name: str, value: Any) -> Any:
        if isinstance(value, tf.IndexedSlices):
            # All replicas' rows, and rows of one index are not added up: optimizers may square each of them.
            rows = value.values if name == "SUM" else self._part_of_mean(value.values)
            return tf.IndexedSlices(*self._inside.gather_slices(rows, value.indices), value.dense_shape)
        value = received.tensor("all_reduce", value, numeric=True)
        return self._inside.add_up(value if name == "SUM" else self._part_of_mean(value))

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """The replicas' values, concatenated along an axis, on every replica; it can be differentiated."""
        del options
        return tf.nest.map_structure(lambda each: self._gathered(received.tensor("all_gather", each), axis), value)

    def _gathered(self, value: Any, axis: int) -> Any:
        if not value.shape.rank:
            raise CaptureError(
                f"all_gather takes tensors with axes, which it concatenates along axis {axis}. Received one of shape "
                f"{value.shape}. Give it an axis: value[tf.newaxis]."
            )
        along = received.axis("all_gather", axis, value.shape.rank)
        order = list(range(value.shape.rank))
        order.insert(0, order.pop(along))
        rows = tf.transpose(value, order)
        if rows.shape[0] is not None:
            # A slice of all rows: the number of rows that all replicas have together is not known while it is traced.
            rows = rows[self._inside.replica * 0 :]
        return tf.transpose(self._inside.gather(rows), [order.index(at) for at in range(len(order))])


class OfWholeBatch(Replica):
    """The context of a marked function: a number of the whole batch is one device's. It belongs to no strategy.

    >>> from autodist_core import AutoDist
    >>> with AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}) as distributed:
    ...     @distributed.function
    ...     def mean(x):
    ...         context = tf.distribute.get_replica_context()
    ...         print(type(context).__name__)
    ...         return context.all_reduce("MEAN", tf.reduce_mean(x))
    ...     print(float(mean(tf.constant([1.0, 2.0, 6.0]))))
    OfWholeBatch
    3.0
    """

    def __init__(self, inside: Inside) -> None:
        super().__init__(
            tf.distribute.get_strategy(), 0, inside,
            lambda value: value * tf.cast(inside.examples / inside.total, value.dtype),
        )
