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

from autodist_core.errors import CaptureError
from autodist_core.loops.tracing import Inside


class ReplicaContext(tf.distribute.ReplicaContext):
    """The context of one trace, which stands for every replica.

    `merge_call` calls its function in place, and what the function reduces is all-reduced. TensorFlow's optimizers of
    `compat.v1` apply their gradients so.
    """

    def __init__(self, strategy: Any, inside: Inside) -> None:
        super().__init__(strategy, inside.replica)
        self._inside = inside

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The number of the replica, as a tensor."""
        return self._inside.replica

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum or the mean of the replicas' values; it can be differentiated."""
        del options
        name = str(getattr(reduce_op, "name", reduce_op)).upper()
        if name not in ("SUM", "MEAN"):
            raise ValueError(f"all_reduce: the operation is SUM or MEAN. Received: {reduce_op!r}.")
        return tf.nest.map_structure(lambda each: self._reduced(name, each), value)

    def _reduced(self, name: str, value: Any) -> Any:
        if isinstance(value, tf.IndexedSlices):
            if name == "SUM" and self._inside.recording.is_marked(value.values):
                # A sparse gradient on its way into an optimizer: the update gets all replicas' rows.
                return value
            value = tf.convert_to_tensor(value)
        total = self._inside.add_up(tf.convert_to_tensor(value))
        return total if name == "SUM" else total / tf.cast(self.num_replicas_in_sync, total.dtype)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Refused: replicas may have different numbers of examples."""
        del value, axis, options
        raise CaptureError(
            "all_gather inside run() is not supported: replicas may have different numbers of examples. Return the "
            "value, and call gather(value, axis) on what run() returns."
        )

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
