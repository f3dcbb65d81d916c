"""The replica context: what a function finds that runs on each replica.

In: a trace. Out: what `tf.distribute.get_replica_context()` returns inside. ::

    context.replica_id_in_sync_group    a tensor: 0 on the first replica, 1 on the second
    context.num_replicas_in_sync        the number of replicas
    context.all_reduce("SUM", value)    the sum of the replicas' values, on every replica
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from autodist_core.loops.replica import Replica
from autodist_core.loops.tracing import Inside


class ReplicaContext(Replica):
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
        super().__init__(strategy, inside.replica, inside)

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The number of the replica, as a tensor."""
        return self._inside.replica

    def _part_of_mean(self, value: Any) -> Any:
        return value / tf.cast(self.num_replicas_in_sync, value.dtype)

    def __enter__(self) -> None:
        super().__enter__()
        self._before = _current.set(self)

    def __exit__(self, *error: Any) -> None:
        _current.reset(self._before)
        super().__exit__(*error)


_current: ContextVar[ReplicaContext | None] = ContextVar("autodist_replica_context", default=None)


def inside_run() -> ReplicaContext | None:
    """The context of the function that is being traced for `run()`, also within its `merge_call`.

    >>> inside_run() is None
    True
    """
    return _current.get()
