"""Where the user's process is in a pipeline, so that the machines can be told which batch comes next.

In: the iterator of the user's process, before and after it makes a batch. Out: the `DrawnBatch` that the machines make,
too; None if the batch is fed. A pass begins with the state of the iterator, and anew where the machines have lost their
place.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.runtime.data_pipelines.batches import DataPipeline, DrawnBatch, Pass, samples_of
from autodist_core.runtime.data_pipelines.iterator_states import state_and_drawn
from autodist_core.step.graph_item import format_bytes


class Follower:
    """Follows one iterator of a pipeline. A state of more than `most` bytes is not sent.

    >>> dataset = tf.data.Dataset.range(4).batch(2)
    >>> pipeline, iterator = DataPipeline(b"", (tf.TensorSpec([None], tf.int64),)), iter(dataset)
    >>> follower = Follower(pipeline, 1 << 20)
    >>> follower.begin(iterator)
    >>> [follower.batch([next(iterator)]).position for _ in range(2)], follower.is_lost
    ([0, 1], False)
    """

    def __init__(self, pipeline: DataPipeline, most: int) -> None:
        self._pipeline, self._most = pipeline, most
        self._pass: Pass | None = None
        self._next = 0

    @property
    def is_lost(self) -> bool:
        """Whether another pass should begin with the next batch."""
        return self._pass is None or self._pass.missed

    def lose(self) -> None:
        """Note that batches were taken that this follower has not seen."""
        self._pass = None

    def begin_anew(self) -> None:
        """Begin a pass at the beginning of the dataset."""
        self._pass, self._next = Pass(self._pipeline, b""), 0

    def begin(self, iterator: Any) -> None:
        """Begin a pass where the iterator is. If that cannot be said, the pipeline is fed from now on."""
        self._pass, self._next = None, 0
        generators = self._pipeline.generators
        try:
            found = state_and_drawn(iterator, list if generators is None else generators.drawn)
        except tf.errors.OpError as error:
            text = error.message.rpartition("}} ")[2].partition(" [Op")[0]
            self._pipeline.feed(f"TensorFlow cannot save where it is ({text.rstrip('.')})")
            return
        if found is None:
            self._pipeline.feed("its threads draw seeds all the time, so where it is cannot be said")
            return
        saved, drawn = found
        if len(saved) > self._most:
            self._pipeline.feed(f"where it is takes {format_bytes(len(saved))} to say")
            return
        self._pass = Pass(self._pipeline, saved, drawn)

    def batch(self, tensors: Sequence[Any] | None = None) -> DrawnBatch | None:
        """The next batch of the pass; None if it is fed. `tensors` is what this process has made, if it has."""
        if self._pipeline.fed or self._pass is None:
            return None
        position, self._next = self._next, self._next + 1
        return DrawnBatch(self._pass, position, () if tensors is None else samples_of(self._pipeline, tensors))
