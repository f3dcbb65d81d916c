"""The collective that brings a tensor of each machine to every machine, for tensors whose size is known late.

In: a tensor of each machine. Out: the tensors of all machines one behind the other, on each machine. A collective takes
equal shapes, and each shape has a collective of its own: TensorFlow keeps what it knows of one for the whole session.
So tensors are padded to one of a few lengths, which all machines find from the longest one::

    rows      5 on one machine, 3 on the other one
    length    5, the place 4 of LENGTHS    both machines pad to 5 rows, and add 4 to the collective's key
"""

import tensorflow as tf

from autodist_core.kernel.draft import Draft

LENGTHS = (1, 2, 3, *(part << shift for shift in range(29) for part in (4, 5, 6, 7)))
"""The lengths of what travels: each is at most a quarter longer than the one before."""
KEYS = 1 << 7
"""The instance keys that a gathering has: one for each length."""
_TRAVEL = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
"""The types that TensorFlow's collective takes; others travel as float32, which has all of their values."""
_MACHINES = 1 << 20
"""Added to the number of machines in the key of a group, since the group of the replicas may be on other devices."""


def machines_of(draft: Draft) -> int:
    """Return the number of all machines with replicas, also of those that others stand for.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> machines_of(example_draft(AllReduce()))
    1
    """
    return len({replica.host for replica in draft.stands_for or draft.placement.replicas})


def gathered(tensor: tf.Tensor, machines: int, key: int | tf.Tensor) -> tf.Tensor:
    """Return the tensors of all machines one behind the other along the first axis. They have one shape.

    >>> graph = tf.Graph()
    >>> with graph.as_default():
    ...     gathered(tf.constant([1, 2]), machines=2, key=7).op.type
    'CollectiveGatherV2'
    """
    travels = tensor if tensor.dtype in _TRAVEL else tf.cast(tensor, tf.float32)
    found = tf.raw_ops.CollectiveGatherV2(
        input=travels, group_size=machines, group_key=_MACHINES + machines, instance_key=key,
        ordering_token=[], communication_hint="auto", timeout_seconds=0.0, is_stateless=False,
    )
    return tf.cast(found, tensor.dtype)


def places_of(lengths: tf.Tensor) -> tf.Tensor:
    """Return for each length the place in `LENGTHS` of the smallest that is not shorter.

    >>> places_of(tf.constant([5, 9, 0], tf.int64)).numpy().tolist(), LENGTHS[4], LENGTHS[8]
    ([4, 8, 0], 5, 10)
    """
    return tf.searchsorted(tf.constant(LENGTHS, tf.int64), lengths)
