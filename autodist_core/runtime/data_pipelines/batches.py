"""The values of a data pipeline: the pipeline, a pass through it, and the arrays of one of its batches.

The machines are told which batch of which pass it is, and make the same one. Where the user's process goes through the
dataset too, a batch has its values, and any of its rows can be fed. Else the pass makes them when somebody asks.

>>> source = Pass(DataPipeline(b"", (tf.TensorSpec([None], tf.int64),)), b"")
>>> rows = DrawnRows(DrawnBatch(source, 0, (np.zeros(16, np.uint8),)), 0, np.array([0, 1]))
>>> rows[1:].tolist(), np.asarray(rows).tolist(), rows.nbytes
([1], [0, 1], 16)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import sample_of
from autodist_core.runtime.data_pipelines.iterator_states import set_state
from autodist_core.runtime.data_pipelines.seed_generators import SeedGenerators


@dataclass(frozen=True)
class Share:
    """The rows of each batch that one machine makes, where machines read files of their own.

    >>> Share(4, 6).graph
    b''
    """

    start: int
    stop: int
    graph: bytes = b""
    """The graph of the machine's dataset. Its batches have these rows only."""


@dataclass(eq=False)
class DataPipeline:
    """A dataset that can run on each machine.

    >>> said = []
    >>> pipeline = DataPipeline(b"", (tf.TensorSpec([None], tf.int64),), say=said.append)
    >>> pipeline.feed("its files are elsewhere")
    >>> pipeline.fed, said
    (True, ['its files are elsewhere'])
    """

    graph: bytes
    """The dataset's graph, with its functions and the arrays in it."""
    specs: tuple[Any, ...]
    """The types and shapes of a batch's tensors."""
    foreseen: bool = False
    """Whether the sizes and the number of batches are known ahead, so that only machines need to make the batches."""
    draws: bool = True
    """Whether it draws random numbers, whose seeds the machines must get."""
    say: Callable[[str], None] = lambda _: None
    shares: tuple[Share, ...] = ()
    """What each machine makes, in the order of the replicas; empty if each makes whole batches."""
    generators: SeedGenerators | None = None
    """From what the dataset draws seeds in the user's process, if the state of an iterator does not have all of it."""
    fed: bool = False
    """Whether the machines cannot run it after all, so that each batch is fed."""
    over: bool = False
    """Whether nobody goes through it any more, so that machines need not keep it."""

    @property
    def made_specs(self) -> tuple[Any, ...]:
        """The types and shapes of what a machine makes."""
        if not self.shares:
            return self.specs
        return tuple(tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in self.specs)

    @property
    def graphs(self) -> list[bytes]:
        """The graph of each machine, or the one graph of all."""
        return [share.graph for share in self.shares] or [self.graph]

    def feed(self, reason: str) -> None:
        """Feed each batch from now on. `say` is told the reason."""
        self.fed = True
        self.say(reason)


@dataclass(eq=False)
class Pass:
    """One way through the elements of a pipeline: from where an iterator was to its end.

    >>> graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(5)))
    >>> source = Pass(DataPipeline(graph.numpy(), (tf.TensorSpec([], tf.int64),)), b"")
    >>> [int(source.element(position)[0]) for position in (1, 3, 2)]
    [1, 3, 2]
    """

    pipeline: DataPipeline
    state: bytes
    """The state of the iterator at the beginning: seeds, buffers and positions. Empty: the beginning of the dataset."""
    drawn: Sequence[int] = ()
    """How many seeds each of the pipeline's generators had drawn then."""
    missed: bool = False
    """Whether the machines are elsewhere, as after a restart. The next batch should begin another pass."""
    _made: tuple[int, Any, Any] | None = None
    """The last element that this process has made: its position, the element, and the iterator behind it."""

    def element(self, position: int) -> Any:
        """The tensors of an element, made in this process; of ragged and sparse ones, the components."""
        at, element, iterator = self._made or (-1, None, None)
        if iterator is None or at > position:
            at, iterator = -1, self._iterator()
        # Eager calls must not be broken off: they convert shapes.
        with defer_interrupt():
            while at < position:
                at, element = at + 1, next(iterator)
                self._made = at, element, iterator
        return tf.nest.flatten(element, expand_composites=True)

    def forget(self) -> None:
        """Drop what this process has made."""
        self._made = None

    def _iterator(self) -> Any:
        variant = tf.raw_ops.DatasetFromGraph(graph_def=self.pipeline.graph)
        iterator = iter(tf.data.experimental.from_variant(variant, self.pipeline.specs))
        if self.state:
            set_state(iterator, self.state)
        return iterator


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """Which batch it is."""

    source: Pass
    position: int
    """The number of batches of the pass before this one."""
    samples: tuple[np.ndarray, ...] = ()
    """Fingerprints of some rows of what each machine makes, or of the whole batch if all make this. Machines compare
    them with those of their batch. Empty if this process does not make the batch."""

@dataclass(frozen=True, eq=False)
class DrawnRows:
    """One array of such a batch. Whoever asks for its values gets them; a step that draws it asks for none."""

    batch: DrawnBatch
    component: int
    """Which of the dataset's tensors it is. The components of ragged and sparse tensors are tensors here."""
    given: Any = None
    """Its values, where this process has made the batch."""

    @property
    def values(self) -> Any:
        """Its values."""
        if self.given is not None:
            return self.given
        return self.batch.source.element(self.batch.position)[self.component].numpy()

    @property
    def nbytes(self) -> int:
        """The bytes of values that it holds."""
        return 0 if self.given is None else int(self.given.nbytes)

    def __getitem__(self, rows: slice) -> Any:
        return self.values[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values, dtype)


def samples_of(pipeline: DataPipeline, tensors: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Fingerprints of some rows of a batch's tensors, for each part of the batch that machines make.

    >>> shares = Share(0, 2), Share(2, 3)
    >>> pipeline = DataPipeline(b"", (tf.TensorSpec([None], tf.int64),), shares=shares)
    >>> whole, first = samples_of(pipeline, [tf.constant([1, 2, 1])]), sample_of([tf.constant([1, 2])])
    >>> len(whole), bool(tf.reduce_all(whole[0] == first))
    (2, True)
    """
    with defer_interrupt():
        if not pipeline.shares:
            return (np.asarray(sample_of(tensors)),)
        return tuple(
            np.asarray(sample_of([tensor[share.start : share.stop] for tensor in tensors])) for share in pipeline.shares
        )
