"""Datasets of a `fit` that run on each machine: what Keras iterates over in their place.

In: the dataset over which Keras's loop would go. Out: `PipelineBatches`, over which it goes instead. Each batch says
which one it is, so that machines can make it themselves (`autodist_core/runtime/data_pipelines/`).

Keras's loop takes each batch from the dataset in the user's process, as always: so sizes, the end of an epoch and
`Resume` are those of one device. Where the sizes and the number of batches are known ahead, no batch is made here: the
loop gets batches without values, and the iterator stands still until somebody needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import keras
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.runtime import DataPipeline, DrawnBatch, DrawnRows, Follower, component_specs
from autodist_keras.training.batches import Batch, BatchIterator, read_batch


class PipelineBatches:
    """The batches of a dataset that can run on each machine.

    >>> import numpy as np
    >>> from autodist_core.runtime import travelling
    >>> pipeline, dataset = travelling(tf.data.Dataset.range(3).batch(2))
    >>> [(rows.batch.position, np.asarray(rows).tolist()) for rows, in (
    ...     batch.arrays for batch in PipelineBatches(dataset, pipeline, 1 << 20)
    ... )]
    [(0, [0, 1]), (1, [2])]
    """

    def __init__(self, dataset: Any, pipeline: DataPipeline, most: int) -> None:
        self.dataset, self.pipeline, self.most = dataset, pipeline, most
        self.element_spec = dataset.element_spec
        # TensorFlow and Keras flatten some containers in different orders.
        number = count()
        numbers = [tuple(next(number) for _ in component_specs(spec)) for spec in pipeline.specs]
        numbered = tf.nest.pack_sequence_as(self.element_spec, numbers)
        self.components = [each for each in keras.tree.flatten(numbered) if each is not None]
        self.length = int(dataset.cardinality())
        """The number of batches; negative if it is unknown, or without end."""

    def __iter__(self) -> PipelineIterator:
        return PipelineIterator(iter(self.dataset), self)

    def foreseen(self, drawn: DrawnBatch) -> Batch:
        """A batch that nobody has made in this process. Its types and sizes are known."""
        specs = self.pipeline.specs
        rows = tuple(DrawnRows(drawn, number) for number in self.components)
        return Batch(self.element_spec, rows, tuple(specs[number] for number in self.components), specs[0].shape[0])


class PipelineIterator(BatchIterator):
    """An iterator over such batches. Each knows its position in a pass through the dataset.

    A pass begins with the first batch, and anew where the machines have lost their place. Its state is what TensorFlow
    saves of the inner iterator. While the batches are foreseen, the inner iterator stands still.
    """

    def __init__(self, inner: Any, batches: PipelineBatches) -> None:
        super().__init__(inner, batches.element_spec)
        self._batches, self._pipeline = batches, batches.pipeline
        self._ahead = batches.pipeline.foreseen
        """Whether batches are given that nobody has made here."""
        self._given = self._behind = 0
        """The number of such batches, and of those among them that the inner iterator has not passed."""
        self._follower = Follower(batches.pipeline, batches.most)

    @property
    def at_next(self) -> Any:
        """The inner iterator, which will make the next batch. From now on it makes each batch."""
        self._ahead = False
        with defer_interrupt():
            self._catch_up(lambda: next(self.inner))
        return self.inner

    def next_of(self, fetch: Callable[[], Any]) -> Batch:
        """The next batch."""
        if self._ahead and self._given == self._batches.length:
            raise StopIteration
        if self._pipeline.fed:
            self._ahead = False
            self._catch_up(fetch)
        elif self._follower.is_lost:
            self._catch_up(fetch)
            if self._ahead and not (self._given or self._pipeline.draws):
                self._follower.begin_anew()
            else:
                self._follower.begin(self.inner)
        if self._ahead:
            drawn = self._follower.batch()
            if drawn is not None:
                self._given, self._behind = self._given + 1, self._behind + 1
                return self._batches.foreseen(drawn)
        data = fetch()
        batch = read_batch(data)
        drawn = self._follower.batch(tf.nest.flatten(data, expand_composites=True))
        if drawn is None:
            return batch
        arrays = zip(self._batches.components, batch.arrays, strict=True)
        return replace(batch, arrays=tuple(DrawnRows(drawn, number, array) for number, array in arrays))

    def _catch_up(self, fetch: Callable[[], Any]) -> None:
        while self._behind:
            fetch()
            self._behind -= 1
