"""Values of all replicas inside a step, through which gradients flow: sums, and the rows of the whole batch.

In: a tensor, and the `Trace` of a step. Out: a marker, which the kernels replace (see `replicator.py`). The gradients
that come back through the marker are added over the replicas::

    summed(x)      Sum of the replicas' x                gradient: the sum of the replicas' gradients
    gathered(x)    the rows of all replicas, in order    gradient: a replica's own rows of the same sum
"""

from typing import Any

import tensorflow as tf

from autodist_core.capture import computed_from, rows_of_all
from autodist_core.capture.batch_axis import SAME


def summed(value: Any, trace: Any) -> Any:
    """The sum of a value over the replicas.

    >>> from autodist_keras.capture.example import with_trace
    >>> def step(trace):
    ...     total = summed(tf.constant(2.0), trace)
    ...     print([marker.op.name for marker in trace.sums])
    ...     return total
    >>> with_trace(step)
    ['sum_over_replicas']
    2.0
    """
    def forward(value: Any) -> Any:
        return trace.sum_over_replicas(value), lambda upstream: _added(upstream, trace)

    return tf.custom_gradient(forward)(value)


def gathered(value: Any, trace: Any) -> Any:
    """The rows of all replicas, in the order of the batch.

    >>> from autodist_keras.capture.example import with_trace
    >>> def step(trace):
    ...     rows = gathered(tf.constant([[1.0], [2.0]]), trace)
    ...     print([marker.op.name for marker in trace.gathers])
    ...     return rows
    >>> with_trace(step)
    ['rows_of_replicas']
    [[1.0], [2.0]]
    """
    return rows_of_all(value, trace.rows_of_replicas, lambda upstream: _added(upstream, trace), trace.replica)


def _added(upstream: Any, trace: Any) -> Any:
    """The sum of gradients over the replicas."""
    upstream = tf.convert_to_tensor(upstream)
    if trace.recording is not None or upstream.op.name in computed_from(trace.weighting):
        return trace.sum_over_replicas(upstream)
    # The loss is not multiplied by this replica's share yet. Its gradient will be. The product and the quotient cancel
    # over the replicas, so the analysis of what mixes examples takes the share for a constant here.
    share = tf.identity(trace.share(upstream.dtype))
    trace.seen.known.append((share, SAME))
    return trace.sum_over_replicas(upstream * share) / share
