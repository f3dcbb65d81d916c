"""Batches that are drawn when a marked function runs, as in TensorFlow's graph mode.

In: a dataset, within `AutoDist.scope()`. Out: an iterator whose `get_next()` gives handles in place of arrays::

    iterator = tf.compat.v1.data.make_one_shot_iterator(dataset)
    batch = iterator.get_next()      handles: nothing is drawn
    train_step(batch)                draws the first batch
    train_step(batch)                draws the second batch

All handles of one `get_next()` are of one batch: a call that gets several of them draws once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import tensorflow as tf


@dataclass(frozen=True, eq=False)
class NextBatch:
    """One call of `get_next()`: the batch that the next call of a marked function draws."""

    iterator: Any

    def draw(self) -> list[Any]:
        """Draw a batch; its tensors in flat order. At the end of the data, TensorFlow's OutOfRangeError is raised."""
        try:
            return tf.nest.flatten(next(self.iterator))
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "the iterator of this batch has no more data") from None


@dataclass(frozen=True, eq=False)
class Handle:
    """A tensor of a batch that is not drawn yet. It can be passed to a marked function, and nothing else."""

    batch: NextBatch
    index: int
    spec: Any

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "this tensor of get_next() has no value yet: a marked function draws it when it is called. Pass it to a "
            "function that AutoDist.function marks, or draw batches yourself: `for batch in dataset: step(batch)`."
        )


class OneShotIterator:
    """An iterator whose `get_next()` gives handles."""

    def __init__(self, dataset: Any) -> None:
        self._iterator = iter(dataset)
        self.element_spec = dataset.element_spec

    def get_next(self, name: str | None = None) -> Any:
        """The handles of a batch that a marked function draws when it is called."""
        del name
        batch = NextBatch(self._iterator)
        specs = tf.nest.flatten(self.element_spec)
        handles = [Handle(batch, index, spec) for index, spec in enumerate(specs)]
        return tf.nest.pack_sequence_as(self.element_spec, handles)


@contextmanager
def graph_mode_iterators() -> Iterator[None]:
    """Let `tf.compat.v1.data.make_one_shot_iterator` make iterators of handles inside this block.

    >>> with graph_mode_iterators():
    ...     batch = tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.range(4).batch(2)).get_next()
    >>> drawn((batch,), {})[0][0].numpy().tolist(), drawn((batch,), {})[0][0].numpy().tolist()
    ([0, 1], [2, 3])
    """
    module = tf.compat.v1.data
    before = module.make_one_shot_iterator
    module.make_one_shot_iterator = OneShotIterator
    try:
        yield
    finally:
        module.make_one_shot_iterator = before


def drawn(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with batches in place of handles; every batch is drawn once."""
    batches: dict[int, list[Any]] = {}

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, Handle):
            return leaf
        if id(leaf.batch) not in batches:
            batches[id(leaf.batch)] = leaf.batch.draw()
        return batches[id(leaf.batch)][leaf.index]

    return tf.nest.map_structure(value, tuple(args)), tf.nest.map_structure(value, dict(kwargs))
