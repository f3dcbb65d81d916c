"""Arrays that every machine keeps, so that a step feeds only the numbers of rows.

In: the whole arrays of a training's data. Out: variables on the CPU of each machine with replicas, from which the graph
of a step gathers (`gathered`). `sent_arrays.py` sends them.

A batch is `KeptRows`, one for each array. Whoever asks them for their values gets the rows of the array, so a session
that keeps nothing feeds them like other arrays. After a loss the next session finds the arrays with the first batch
that it runs or repeats, and sends them again.

>>> kept = KeptArrays((np.array([[1.0], [2.0], [3.0]]), np.array([4, 5, 6])))
>>> first, second = kept.rows(np.array([2, 0]))
>>> np.asarray(first).tolist(), np.asarray(second[1:]).tolist(), first.nbytes, kept.nbytes
([[3.0], [1.0]], [4], 16, 48)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.kernel import DistributedGraph, Placement
from autodist_core.kernel.placement.placement import Replica
from autodist_core.log import stage
from autodist_core.runtime.sent_arrays import Place, Sender, bytes_of
from autodist_core.step.editor import Editor


@dataclass(frozen=True, eq=False)
class KeptArrays:
    """The arrays of some data, with one row for each example. Nobody may change them. The module has an example."""

    arrays: tuple[np.ndarray, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(map(bytes_of, self.arrays))

    def rows(self, numbers: np.ndarray) -> tuple[KeptRows, ...]:
        """The rows with these numbers, of each array."""
        return tuple(KeptRows(self, index, numbers) for index in range(len(self.arrays)))


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Some rows of one of the kept arrays: an array of a batch that travels as the numbers of its rows."""

    source: KeptArrays
    index: int
    numbers: np.ndarray

    @property
    def nbytes(self) -> int:
        """The bytes of the row numbers."""
        return self.numbers.nbytes

    def __getitem__(self, rows: slice) -> KeptRows:
        return replace(self, numbers=self.numbers[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.source.arrays[self.index][self.numbers], dtype)


@dataclass(eq=False)
class KeptSlot:
    """A place for the arrays of one data at a time, on each machine. Arrays of equal types can follow each other."""

    name: str
    types: tuple[tuple[Any, tuple[int, ...]], ...]
    """The type and the shape of a row, of each array."""
    place: Place
    content: KeptArrays | None = None

    def put_into(
        self, graph: DistributedGraph, replicas: Sequence[Replica], arrays: Sequence[KeptRows]
    ) -> DistributedGraph:
        """The graph of a step, or of a part of it for these replicas, in which these gather their rows."""
        return gathered(graph, replicas, self.place.names)

    def feeds(
        self, arrays: Sequence[KeptRows], inputs: Sequence[int], replica: int, start: int, stop: int
    ) -> list[Any] | None:
        """What a replica is fed in place of its rows: their numbers."""
        return [arrays[index].numbers[start:stop] for index in inputs[:1]]

    def running(self, arrays: Sequence[KeptRows], active: int) -> AbstractContextManager[None]:
        """Run a step on these rows in this block."""
        return nullcontext()


class KeptData:
    """The arrays that the machines of one session keep.

    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> import tensorflow as tf
    >>> session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(device_count={"CPU": 2}))
    >>> data = KeptData(session, example_placement(PS()), lambda doing, call, *rest: call(*rest))
    >>> first = data.slot_of(KeptArrays((np.ones((4, 2)),)))
    >>> data.release()
    >>> data.slot_of(KeptArrays((np.zeros((9, 2)),))) is first
    True
    >>> session.close()
    """

    def __init__(self, session: Any, placement: Placement, call: Callable[..., Any]) -> None:
        chief = placement.tasks.chief
        # The chief's machine first: the arrays are there.
        self._hosts = sorted(placement.hosts, key=lambda host: host != chief)
        self._sender = Sender(session, chief, call)
        self._slots: list[KeptSlot] = []

    def slot_of(self, kept: KeptArrays) -> KeptSlot:
        """Where the machines keep these arrays. If they do not yet, the arrays are sent to them."""
        for slot in self._slots:
            if slot.content is kept:
                return slot
        types = tuple((array.dtype, array.shape[1:]) for array in kept.arrays)
        free = (slot for slot in self._slots if not (slot.place.held or slot.place.broken) and slot.types == types)
        slot = next(free, None) or self._add(types)
        with stage("the sending of the data"):
            self._sender.send(slot.place, kept.arrays, "the data")
        slot.content = kept
        return slot

    def release(self) -> None:
        """Free the memory of all arrays. Their slots stay for the next ones."""
        for slot in self._slots:
            slot.content = None
            if slot.place.held:
                self._sender.free(slot.place, "the release of the data")

    def _add(self, types: tuple[tuple[Any, tuple[int, ...]], ...]) -> KeptSlot:
        name = f"kept{len(self._slots)}"
        names = [f"{name}_{index}" for index in range(len(types))]
        self._slots.append(KeptSlot(name, types, self._sender.place(names, types, self._hosts)))
        return self._slots[-1]


KEPT_VARIABLE = "AUTODIST_KEPT_BYTES"
_KEPT_BYTES = 1 << 30
"""The most bytes of arrays that each machine keeps, unless the environment variable says otherwise."""
SMALL_GRAPH = 1 << 20
"""The graph of a dataset with fewer bytes is sent without asking what the steps would send."""


def kept_limit(environment: Mapping[str, str] = os.environ) -> int:
    """The most bytes of arrays that each machine keeps.

    >>> kept_limit({}), kept_limit({"AUTODIST_KEPT_BYTES": "0"})
    (1073741824, 0)
    >>> kept_limit({"AUTODIST_KEPT_BYTES": "2 GB"})
    Traceback (most recent call last):
    ValueError: AUTODIST_KEPT_BYTES='2 GB' is no number of bytes, such as 2000000000, or 0 to feed every batch.
    """
    text = environment.get(KEPT_VARIABLE, str(_KEPT_BYTES))
    if not text.strip().isdecimal():
        raise ValueError(
            f"{KEPT_VARIABLE}={text!r} is no number of bytes, such as 2000000000, or 0 to feed every batch."
        )
    return int(text)


def gathered(graph: DistributedGraph, replicas: Sequence[Replica], kept: Sequence[str]) -> DistributedGraph:
    """Return a graph that is fed the row numbers of each replica. `kept` names the array of each captured input.

    In place of the placeholder of each replica's slice is::

        replica1/x = ResourceGather(data/replica1/kept0_0, feed/replica1/rows)

    The node that gathers has the name of the placeholder, so whatever read the placeholder reads the gathered rows.

    The feeds of the graph are those of the first of these replicas.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.kernel.pipeline import build
    >>> from autodist_core.strategy import PS
    >>> placement = example_placement(PS())
    >>> graph = gathered(build(example_step(), placement), placement.replicas, ["kept0_0"])
    >>> graph.feeds, {node.name: list(node.input) for node in graph.graph_def.node}["replica1/x"]
    ((('feed/replica0/rows',), ('feed/replica1/rows',)), ['data/replica1/kept0_0', 'feed/replica1/rows'])
    """
    if not graph.inputs:
        return graph
    editor, feeds = Editor.of(graph.graph_def), []
    for replica, names in zip(replicas, graph.feeds, strict=False):
        rows, host = f"feed/{replica.prefix}/rows", replica.host
        editor.add("Placeholder", rows, device=host, dtype=tf.int64, shape=tf.TensorShape([None]))
        feeds.append((rows,))
        for index, name in zip(graph.inputs, names, strict=True):
            dtype = tf.as_dtype(editor[name].attr["dtype"].type)
            shape = tf.TensorShape(editor[name].attr["shape"].shape)
            shape = tf.TensorShape([None, *shape[1:]]) if shape.rank else shape
            handle = f"data/{replica.prefix}/{kept[index]}"
            editor.add("VarHandleOp", handle, device=host, dtype=dtype, shape=shape, shared_name=kept[index])
            editor.remove([name])
            editor.add(
                "ResourceGather", name, [handle, rows], host, dtype=dtype, Tindices=tf.int64, batch_dims=0,
                validate_indices=True,
            )
    return replace(graph, graph_def=editor.graph_def(), feeds=tuple(feeds))
