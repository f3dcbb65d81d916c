"""Datasets of a `fit` that run on each machine: what Keras iterates over in their place.

In: the dataset over which Keras's loop would go. Out: `PipelineBatches`, over which it goes instead. Keras's loop takes
each batch from the dataset in the user's process, as always: so sizes, the end of an epoch, callbacks and `Resume` are
those of one device. Each batch also says which one it is, so that the other machines can make it themselves
(`autodist_core/runtime/data_pipelines/`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import sample_of
from autodist_core.runtime import DataPipeline, DrawnBatch, DrawnRows, Pass
from autodist_core.step.graph_item import format_bytes
from autodist_keras.training.batches import Batch, BatchIterator, read_batch

_IGNORE = 1
"""What TensorFlow does about operations with a state of their own. `travelling` has looked for them."""


class PipelineBatches:
    """The batches of a dataset that can run on each machine.

    >>> from autodist_core.runtime import travelling
    >>> pipeline, dataset = travelling(tf.data.Dataset.range(3).batch(2))
    >>> [(rows.batch.position, np.asarray(rows).tolist()) for rows, in (
    ...     batch.arrays for batch in PipelineBatches(dataset, pipeline, 1 << 20)
    ... )]
    [(0, [0, 1]), (1, [2])]
    """

    def __init__(self, dataset: Any, pipeline: DataPipeline, most: int) -> None:
        self._dataset, self._pipeline, self._most = dataset, pipeline, most
        self.element_spec = dataset.element_spec
        # TensorFlow and Keras flatten some containers in different orders.
        count = len(pipeline.types)
        numbered = tf.nest.pack_sequence_as(self.element_spec, list(range(count)))
        self._components = [number for number in keras.tree.flatten(numbered) if number is not None]

    def __iter__(self) -> PipelineIterator:
        return PipelineIterator(iter(self._dataset), self.element_spec, self._pipeline, self._components, self._most)


class PipelineIterator(BatchIterator):
    """An iterator over such batches. Each knows its position in a pass through the dataset.

    A pass begins with the first batch, and anew where the machines have lost their place. Its state is what TensorFlow
    saves of the iterator.
    """

    def __init__(
        self, inner: Any, element_spec: Any, pipeline: DataPipeline, components: list[int], most: int
    ) -> None:
        super().__init__(inner, element_spec)
        self._pipeline, self._components, self._most = pipeline, components, most
        self._pass: Pass | None = None
        self._next = 0

    def next_of(self, fetch: Callable[[], Any]) -> Batch:
        """The next batch."""
        if self._pipeline.fed:
            return read_batch(fetch())
        if self._pass is None or self._pass.missed:
            self._begin()
        data = fetch()
        batch = read_batch(data)
        if self._pass is None:
            return batch
        with defer_interrupt():
            sample = np.asarray(sample_of(tf.nest.flatten(data)))
        drawn = DrawnBatch(self._pass, self._next, sample)
        self._next += 1
        arrays = zip(self._components, batch.arrays, strict=True)
        return replace(batch, arrays=tuple(DrawnRows(drawn, number, array) for number, array in arrays))

    def _begin(self) -> None:
        self._pass, self._next = None, 0
        resource = tf.nest.flatten(self.inner, expand_composites=True)[0]
        try:
            state = tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=_IGNORE)
        except tf.errors.OpError as error:
            text = error.message.rpartition("}} ")[2].partition(" [Op")[0]
            self._pipeline.feed(f"TensorFlow cannot save where it is ({text.rstrip('.')})")
            return
        saved: bytes = tf.raw_ops.SerializeTensor(tensor=state).numpy()
        if len(saved) > self._most:
            self._pipeline.feed(f"where it is takes {format_bytes(len(saved))} to say")
            return
        self._pass = Pass(self._pipeline, saved)
