"""The replica context: what a function finds that runs on each replica.

In: a trace. Out: what `tf.distribute.get_replica_context()` returns inside. ::

    context.replica_id_in_sync_group    a tensor: 0 on the first replica, 1 on the second
    context.num_replicas_in_sync        the number of replicas
    context.all_reduce("SUM", value)    the sum of the replicas' values, on every replica
"""

from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from autodist_core.loops.calls import received
from autodist_core.loops.distribute.values import entries
from autodist_core.loops.inside import Inside
from autodist_core.loops.replica import Replica


class _Known(tf.distribute.ReplicaContext):
    """A context that `inside_run` finds."""

    def __enter__(self) -> None:
        super().__enter__()
        self._before = _current.set(self)

    def __exit__(self, *error: Any) -> None:
        _current.reset(self._before)
        super().__exit__(*error)


class ReplicaContext(_Known, Replica):
    """The context of one trace, which stands for every replica of a strategy.

    >>> from autodist_core.loops.distribute import distribute
    >>> strategy = distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]})
    >>> def number():
    ...     context = tf.distribute.get_replica_context()
    ...     print(type(context).__name__, context.num_replicas_in_sync)
    ...     return context.replica_id_in_sync_group
    >>> [int(each) for each in strategy.experimental_local_results(strategy.run(number))]
    ReplicaContext 2
    [0, 1]
    """

    def __init__(self, strategy: Any, inside: Inside) -> None:
        super().__init__(
            strategy, inside.replica, inside, lambda value: value / tf.cast(self.num_replicas_in_sync, value.dtype)
        )

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The number of the replica, as a tensor."""
        return self._inside.replica


class OnlyReplica(_Known):
    """The context of a function that runs on one device: a sum over the replicas is the replica's own value.

    >>> from autodist_core.loops.distribute import distribute
    >>> with OnlyReplica(distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]})) as context:
    ...     float(tf.distribute.get_replica_context().all_reduce("MEAN", 3.0))
    3.0
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy, 0)

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The value itself."""
        del options
        received.operation("all_reduce", reduce_op)
        return tf.nest.map_structure(_tensor, value)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """The value itself."""
        del axis, options
        return tf.nest.map_structure(_tensor, value)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


_current: ContextVar[ReplicaContext | OnlyReplica | None] = ContextVar("autodist_replica_context", default=None)


def inside_run() -> ReplicaContext | OnlyReplica | None:
    """The context of the function that is being traced for `run()`, also within its `merge_call`.

    >>> inside_run() is None
    True
    """
    return _current.get()


def reduced_inside(context: ReplicaContext | OnlyReplica, op: Any, value: Any, axis: Any) -> Any:
    """What the strategy's `reduce` gives inside `run()`: the value is the replica's own one.

    >>> from autodist_core.loops.distribute import distribute
    >>> strategy = distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]})
    >>> def mean(x):
    ...     return reduced_inside(tf.distribute.get_replica_context(), "MEAN", x, 0)
    >>> [float(each) for each in strategy.run(mean, args=(tf.constant([1.0, 2.0]),)).values]
    [1.5, 1.5]
    >>> strategy.autodist.close()
    """
    if axis is None:
        return context.all_reduce(op, value)
    name = received.operation("reduce", op)

    def reduced(each: Any) -> Any:
        each = received.tensor("reduce", each, numeric=True)
        axes = received.axes("reduce", axis, each.shape.rank)
        total = context.all_reduce("SUM", tf.reduce_sum(each, axes))
        return total if name == "SUM" else total / tf.cast(context.all_reduce("SUM", entries(each, axes)), total.dtype)

    return tf.nest.map_structure(reduced, value)
