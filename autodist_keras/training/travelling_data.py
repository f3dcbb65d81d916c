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
from autodist_core.runtime import DataPipeline, DrawnBatch, DrawnRows, Pass, component_specs, samples_of
from autodist_core.runtime.data_pipelines import state_and_drawn
from autodist_core.step.graph_item import format_bytes
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
        self._pass: Pass | None = None
        self._next = 0

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
        elif self._pass is None or self._pass.missed:
            self._catch_up(fetch)
            self._begin()
        if self._pipeline.fed or self._pass is None:
            return read_batch(fetch())
        position, self._next = self._next, self._next + 1
        if self._ahead:
            self._given, self._behind = self._given + 1, self._behind + 1
            return self._batches.foreseen(DrawnBatch(self._pass, position))
        data = fetch()
        batch = read_batch(data)
        drawn = DrawnBatch(
            self._pass, position, samples_of(self._pipeline, tf.nest.flatten(data, expand_composites=True))
        )
        arrays = zip(self._batches.components, batch.arrays, strict=True)
        return replace(batch, arrays=tuple(DrawnRows(drawn, number, array) for number, array in arrays))

    def _catch_up(self, fetch: Callable[[], Any]) -> None:
        while self._behind:
            fetch()
            self._behind -= 1

    def _begin(self) -> None:
        self._pass, self._next = None, 0
        if self._ahead and not (self._given or self._pipeline.draws):
            self._pass = Pass(self._pipeline, b"")
            return
        generators = self._pipeline.generators
        try:
            found = state_and_drawn(self.inner, list if generators is None else generators.drawn)
        except tf.errors.OpError as error:
            text = error.message.rpartition("}} ")[2].partition(" [Op")[0]
            self._pipeline.feed(f"TensorFlow cannot save where it is ({text.rstrip('.')})")
            return
        if found is None:
            self._pipeline.feed("its threads draw seeds all the time, so where it is cannot be said")
            return
        saved, drawn = found
        if len(saved) > self._batches.most:
            self._pipeline.feed(f"where it is takes {format_bytes(len(saved))} to say")
            return
        self._pass = Pass(self._pipeline, saved, drawn)
