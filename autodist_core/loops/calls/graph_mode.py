"""Batches that are drawn when a marked function runs, as in TensorFlow's graph mode.

In: a dataset, within `AutoDist.scope()`. Out: an iterator whose `get_next()` gives batch handles in place of arrays::

    iterator = tf.compat.v1.data.make_one_shot_iterator(dataset)
    batch = iterator.get_next()      batch handles: nothing is drawn
    train_step(batch)                draws the first batch
    train_step(batch)                draws the second batch

All batch handles of one `get_next()` are of one batch: a call that gets several of them draws once. A call that is
refused, `plan` and `verify` put what they have drawn back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import tensorflow as tf


@dataclass(frozen=True, eq=False)
class NextBatch:
    """One call of `get_next()`: the batch that the next call of a marked function draws.

    >>> iterator = OneShotIterator(tf.data.Dataset.from_tensor_slices(([1, 2], [3, 4])))
    >>> (x, y), (later, _) = iterator.get_next(), iterator.get_next()
    >>> x.batch is y.batch, x.batch is later.batch
    (True, False)
    """

    iterator: OneShotIterator


@dataclass(frozen=True, eq=False)
class BatchHandle:
    """A tensor of a batch that is not drawn yet. It can be passed to a marked function, and nothing else.

    >>> handle = OneShotIterator(tf.data.Dataset.range(4).batch(2)).get_next()
    >>> handle.spec
    TensorSpec(shape=(None,), dtype=tf.int64, name=None)
    >>> import numpy as np
    >>> np.asarray(handle)
    Traceback (most recent call last):
    TypeError: this tensor of get_next() has no value yet: a marked function draws it when it is called. ...
    """

    batch: NextBatch
    index: int
    spec: Any

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "this tensor of get_next() has no value yet: a marked function draws it when it is called. Pass it to a "
            "function that AutoDist.function marks, or draw batches yourself: `for batch in dataset: step(batch)`."
        )


class OneShotIterator:
    """An iterator whose `get_next()` gives batch handles.

    >>> batch = OneShotIterator(tf.data.Dataset.range(4).batch(2)).get_next()
    >>> for _ in range(2):
    ...     with drawn((batch,), {}) as call:
    ...         print(call.args[0].numpy().tolist())
    ...         call.used = True
    [0, 1]
    [2, 3]
    """

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        self.back: list[list[Any]] = []
        """The batches that were put back, since the call that drew them was refused; the last one is drawn first."""
        self.element_spec = dataset.element_spec

    def get_next(self, name: str | None = None) -> Any:
        """The batch handles that a marked function draws when it is called."""
        del name
        batch = NextBatch(self)
        handles = [BatchHandle(batch, index, spec) for index, spec in enumerate(tf.nest.flatten(self.element_spec))]
        return tf.nest.pack_sequence_as(self.element_spec, handles)

    def draw(self) -> list[Any]:
        """Draw a batch; its tensors in flat order. At the end of the data, TensorFlow's OutOfRangeError is raised."""
        if self.back:
            return self.back.pop()
        try:
            return tf.nest.flatten(next(self._iterator))
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "the iterator of this batch has no more data") from None


@contextmanager
def graph_mode_iterators() -> Iterator[None]:
    """Let `tf.compat.v1.data.make_one_shot_iterator` make iterators of batch handles inside this block.

    >>> with graph_mode_iterators():
    ...     batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).batch(2)).get_next()
    >>> type(batch).__name__
    'BatchHandle'
    """
    module = tf.compat.v1.data
    before = module.make_one_shot_iterator
    module.make_one_shot_iterator = OneShotIterator
    try:
        yield
    finally:
        module.make_one_shot_iterator = before


@contextmanager
def drawn(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Drawn]:
    """Draw the batches of a call, each once. If they are not `used`, they are the next ones again afterwards.

    >>> with graph_mode_iterators():
    ...     batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).batch(2)).get_next()
    >>> for _ in range(2):
    ...     with drawn((batch,), {}) as call:
    ...         print(call.args[0].numpy().tolist())
    [0, 1]
    [0, 1]
    """
    found = Drawn()

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, BatchHandle):
            return leaf
        if leaf.batch not in found.batches:
            found.batches[leaf.batch] = leaf.batch.iterator.draw()
        return found.batches[leaf.batch][leaf.index]

    try:
        found.args = tf.nest.map_structure(value, tuple(args))
        found.kwargs = tf.nest.map_structure(value, dict(kwargs))
        yield found
    finally:
        for batch, tensors in reversed(found.batches.items()) if not found.used else ():
            batch.iterator.back.append(tensors)


@dataclass
class Drawn:
    """The arguments of a call, with batches in place of batch handles.

    >>> with drawn((3, [0.1]), {}) as call:
    ...     call.args, call.batches
    ((3, [0.1]), {})
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    batches: dict[NextBatch, list[Any]] = field(default_factory=dict)
    used: bool = False
