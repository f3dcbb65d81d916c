"""The state of an iterator of tf.data: saved as bytes, and set on another iterator of the same dataset.

In: an iterator. Out: its state, with the seeds that its dataset had drawn at the same moment; and back again.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

IGNORE, FAIL = 1, 2
"""What TensorFlow does about operations with a state of their own in a dataset whose iterator is saved."""
_TRIES = 20
"""How often a state is saved while a thread of tf.data draws seeds."""


def state_of(iterator: Any, policy: int = IGNORE) -> bytes:
    """The state of an iterator: seeds, buffers and positions.

    >>> iterator = iter(tf.data.Dataset.range(3))
    >>> before, number = state_of(iterator), next(iterator)
    >>> state_of(iterator) == before
    False
    """
    state = tf.raw_ops.SerializeIterator(resource_handle=_resource(iterator), external_state_policy=policy)
    return tf.raw_ops.SerializeTensor(tensor=state).numpy()


def set_state(iterator: Any, saved: bytes) -> None:
    """Let an iterator go on from a saved state.

    >>> numbers = tf.data.Dataset.range(9).shuffle(9)
    >>> one, other = iter(numbers), iter(numbers)
    >>> number = next(one)
    >>> set_state(other, state_of(one))
    >>> [int(each) for each in one] == [int(each) for each in other]
    True
    """
    state = tf.io.parse_tensor(saved, tf.variant)
    tf.raw_ops.DeserializeIterator(resource_handle=_resource(iterator), serialized=state)


def state_and_drawn(iterator: Any, drawn: Callable[[], Any], policy: int = IGNORE) -> tuple[bytes, Any] | None:
    """The state of an iterator, and the seeds that were drawn at this moment. None if threads do not stop to draw.

    The threads of an iterator go ahead. State and seeds are of one moment if nobody drew in between.

    >>> state, seeds = state_and_drawn(iter(tf.data.Dataset.range(3)), lambda: [4])
    >>> seeds
    [4]
    >>> counts = iter(range(100))
    >>> state_and_drawn(iter(tf.data.Dataset.range(3)), lambda: next(counts))
    """
    before = drawn()
    for _ in range(_TRIES):
        state = state_of(iterator, policy)
        after = drawn()
        if before == after:
            return state, after
        before = after
    return None


def _resource(iterator: Any) -> Any:
    return tf.nest.flatten(iterator, expand_composites=True)[0]
