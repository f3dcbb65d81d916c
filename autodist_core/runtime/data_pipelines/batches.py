"""The values of a data pipeline: the pipeline, a pass through it, and the arrays of one of its batches.

The program of the user goes through the dataset itself. So a batch has its values, and any of its rows can be fed. The
machines are told which batch of which pass it is, and make the same one.

>>> dataset = tf.data.Dataset.range(5).batch(2)
>>> source = Pass(DataPipeline(b"", (tf.int64,), (tf.TensorShape([None]),)), b"")
>>> rows = DrawnRows(DrawnBatch(source, 0, np.zeros(16, np.uint8)), 0, np.array([0, 1]))
>>> rows[1:].tolist(), np.asarray(rows).tolist(), rows.nbytes
([1], [0, 1], 16)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(eq=False)
class DataPipeline:
    """A dataset that can run on each machine.

    >>> said = []
    >>> pipeline = DataPipeline(b"", (tf.int64,), (tf.TensorShape([None]),), said.append)
    >>> pipeline.feed("its files are elsewhere")
    >>> pipeline.fed, said
    (True, ['its files are elsewhere'])
    """

    graph: bytes
    """The dataset's graph, with its functions and the arrays in it."""
    types: tuple[tf.DType, ...]
    shapes: tuple[tf.TensorShape, ...]
    """The types and shapes of a batch's tensors."""
    say: Callable[[str], None] = lambda _: None
    fed: bool = False
    """Whether the machines cannot run it after all, so that each batch is fed."""

    def feed(self, reason: str) -> None:
        """Feed each batch from now on. `say` is told the reason."""
        self.fed = True
        self.say(reason)


@dataclass(eq=False)
class Pass:
    """One way through the elements of a pipeline: from where an iterator was to its end."""

    pipeline: DataPipeline
    state: bytes
    """The state of the iterator at the beginning: seeds of shuffles, buffers and positions."""
    missed: bool = False
    """Whether the machines are elsewhere, as after a restart. The next batch should begin another pass."""


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """Which batch it is."""

    source: Pass
    position: int
    """The number of batches of the pass before this one."""
    sample: np.ndarray
    """What the machines compare their batch with: fingerprints of some rows (`autodist_core.kernel.sample_of`)."""


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """One array of such a batch. Whoever asks for its values gets them; a step that draws it asks for none."""

    batch: DrawnBatch
    component: int
    """Which of the dataset's tensors it is."""
    values: Any

    @property
    def nbytes(self) -> int:
        """The bytes of its values."""
        return int(self.values.nbytes)

    def __getitem__(self, rows: slice) -> Any:
        return self.values[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values, dtype)
