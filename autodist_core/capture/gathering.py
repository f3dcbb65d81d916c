"""The rows of the whole batch, for a computation that must see them: a marker that the kernels replace.

In: a tensor with one row for each example of a replica, while a step is traced. Out: a marker, which has the rows of
all replicas on every replica. For the embeddings of two replicas with 3 and 2 examples::

    replica 0 has 3 rows, replica 1 has 2    whole_batch    both have all 5 rows, in the order of the batch

The front that traces the step says how a marker is made (`gathering`). Without such a front, the program runs on one
device, which has the whole batch already.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import tensorflow as tf

from autodist_core.errors import CaptureError

T = TypeVar("T")


def whole_batch(values: T) -> T:
    """The rows of the whole batch, in their order, on every replica. On one device: the values themselves.

    `values` is a tensor, or a structure of tensors, with one row for each example. A loss that compares the examples
    of a batch with each other takes all of them by this function, and is exact on any number of replicas. The gradient
    of a row is the sum of what all replicas make of it.

    >>> import tensorflow as tf
    >>> def loss(embeddings):
    ...     embeddings = whole_batch(embeddings)
    ...     return tf.reduce_mean(tf.matmul(embeddings, embeddings, transpose_b=True))
    >>> float(loss(tf.constant([[1.0], [3.0]])))
    4.0
    """
    gather = _gather.get()
    if gather is None:
        return values
    return tf.nest.map_structure(lambda value: value if value is None else _gathered(gather, value), values)


def _gathered(gather: Callable[[Any], Any], value: Any) -> Any:
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 0 or (tensor.shape.rank is not None and tensor.shape[0] is not None):
        raise CaptureError(
            f"whole_batch takes tensors with one row for each example of the batch. Received one of shape "
            f"{tuple(tensor.shape)}, whose first axis is not the batch's. Leave out what every replica has whole."
        )
    return gather(tensor)


@contextmanager
def gathering(gather: Callable[[Any], Any]) -> Iterator[None]:
    """Let `whole_batch` call `gather` for each tensor, while a step is traced.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default(), gathering(lambda rows: tf.identity(rows, "marker")):
    ...     print(whole_batch(tf.compat.v1.placeholder("float32", [None, 3], "embeddings")).name)
    marker:0
    """
    token = _gather.set(gather)
    try:
        yield
    finally:
        _gather.reset(token)


_gather: ContextVar[Callable[[Any], Any] | None] = ContextVar("autodist_whole_batch", default=None)


def rows_of_all(value: Any, gather: Callable[[Any], Any], add: Callable[[Any], Any], replica: Any) -> Any:
    """The rows of all replicas that `gather` marks. The gradient of a replica's rows is its part of what `add` marks.

    >>> import tensorflow as tf
    >>> rows = tf.constant([[2.0], [3.0]])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(rows)
    ...     squares = rows_of_all(rows, tf.identity, tf.identity, 0) ** 2
    >>> tape.gradient(squares, rows).numpy().tolist()
    [[4.0], [6.0]]
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gathered(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return _own_rows(add(tf.convert_to_tensor(upstream)), value, replica, gather)

        return gather(value), gradient

    return gathered(value)


def _own_rows(whole: Any, value: Any, replica: Any, gather: Callable[[Any], Any]) -> Any:
    """The rows of a whole batch that belong to this replica: as many as `value` has, behind earlier replicas' rows."""
    rows = tf.shape(value)[:1]
    before = tf.reduce_sum(gather(rows)[:replica])
    return whole[before : before + rows[0]]
