"""Arrays that every machine keeps, so that a step feeds only the numbers of rows.

In: the whole arrays of a training's data. Out: variables on the CPU of each machine with replicas, from which the graph
of a step gathers (`autodist_core.kernel.gathered`). The arrays travel in messages of a limited size. Each machine
passes a message on to the next one, so the chief sends the arrays once.

A batch is `KeptRows`, one for each array. Whoever asks them for their values gets the rows of the array, so a session
that keeps nothing feeds them like other arrays. After a loss the next session finds the arrays with the first batch
that it runs or repeats, and sends them again.

>>> kept = KeptArrays((np.array([[1.0], [2.0], [3.0]]), np.array([4, 5, 6])))
>>> first, second = kept.rows(np.array([2, 0]))
>>> np.asarray(first).tolist(), np.asarray(second[1:]).tolist(), first.nbytes, kept.nbytes
([[3.0], [1.0]], [4], 16, 48)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import DistributedGraph, Placement, gathered
from autodist_core.kernel.placement.placement import Replica
from autodist_core.log import log, stage
from autodist_core.step.graph_item import format_bytes

MESSAGE_BYTES = 1 << 26
"""The most bytes of one message, unless a single row has more."""
_FIRST_SECONDS, _NEXT_SECONDS = 2.0, 5.0


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
        found = self.source.arrays[self.index][self.numbers]
        return found if dtype is None else found.astype(dtype, copy=False)


@dataclass(eq=False)
class Slot:
    """A place for the arrays of one data at a time, on each machine. Arrays of equal types can follow each other."""

    number: int
    types: tuple[tuple[Any, tuple[int, ...]], ...]
    """The type and the shape of a row, of each array."""
    content: KeptArrays | None = None
    held: bool = False
    """Whether the machines may have memory for its arrays."""
    broken: bool = False
    """Whether a sending was broken off. A late message of it may still come, so no other arrays get this slot."""
    makers: list[tuple[Any, Any]] = field(default_factory=list)
    writers: list[tuple[Any, Any, Any]] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    """Operations of each array, with their feeds: zeros of a shape, rows from a first one on, and the end."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables: the same on each machine."""
        return tuple(f"{self.name}_{index}" for index in range(len(self.types)))

    @property
    def name(self) -> str:
        """The name of the slot."""
        return f"kept{self.number}"

    def put_into(
        self, graph: DistributedGraph, replicas: Sequence[Replica], arrays: Sequence[KeptRows]
    ) -> DistributedGraph:
        """The graph of a step, or of a part of it for these replicas, in which these gather their rows."""
        return gathered(graph, replicas, self.names)

    def feeds(
        self, arrays: Sequence[KeptRows], inputs: Sequence[int], replica: int, start: int, stop: int
    ) -> list[Any] | None:
        """What a replica is fed in place of its rows: their numbers."""
        return [arrays[index].numbers[start:stop] for index in inputs[:1]]

    def running(self, arrays: Sequence[KeptRows], active: int) -> AbstractContextManager[None]:
        """Run a step on these rows in this block."""
        return nullcontext()


def bytes_of(array: np.ndarray) -> int:
    """The bytes that an array needs to travel. Of strings, numpy knows the addresses only.

    >>> bytes_of(np.ones(3)), bytes_of(np.array(["é", b"bcd"], object))
    (24, 5)
    """
    if array.dtype != object:
        return array.nbytes
    return sum(len(each.encode() if isinstance(each, str) else each) for each in array.ravel())


def types_of(kept: KeptArrays) -> tuple[tuple[Any, tuple[int, ...]], ...]:
    """The type and the shape of a row, of each array.

    >>> types_of(KeptArrays((np.zeros((4, 2), "float32"),)))
    ((dtype('float32'), (2,)),)
    """
    return tuple((array.dtype, array.shape[1:]) for array in kept.arrays)


class KeptData:
    """The arrays that the machines of one session keep.

    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(device_count={"CPU": 2}))
    >>> data = KeptData(session.graph, session, example_placement(PS()), lambda doing, call, *rest: call(*rest))
    >>> first = data.slot_of(KeptArrays((np.ones((4, 2)),)))
    >>> data.release()
    >>> data.slot_of(KeptArrays((np.zeros((9, 2)),))) is first
    True
    >>> session.close()
    """

    def __init__(self, graph: Any, session: Any, placement: Placement, call: Callable[..., Any]) -> None:
        self._graph, self._session, self._call = graph, session, call
        self._chief = placement.tasks.chief
        hosts = dict.fromkeys(replica.host for replica in placement.replicas)
        # The chief's machine first: the arrays are there.
        self._hosts = sorted(hosts, key=lambda host: host != self._chief)
        self._slots: list[Slot] = []
        self._calls: dict[Any, Callable[..., Any]] = {}

    def slot_of(self, kept: KeptArrays) -> Slot:
        """Where the machines keep these arrays. If they do not yet, the arrays are sent to them."""
        for slot in self._slots:
            if slot.content is kept:
                return slot
        types = types_of(kept)
        free = (slot for slot in self._slots if not (slot.held or slot.broken) and slot.types == types)
        slot = next(free, None) or self._add(types)
        slot.held = slot.broken = True
        with stage("the sending of the data"):
            self._send(slot, kept)
        slot.content, slot.broken = kept, False
        return slot

    def release(self) -> None:
        """Free the memory of all arrays. Their slots stay for the next ones."""
        held = [slot for slot in self._slots if slot.held]
        for slot in held:
            slot.content, slot.held = None, False
        for slot in held:
            self._run("the release of the data", (slot, "end"), slot.ends)

    def drop(self) -> None:
        """Drop all references to the session."""
        self._graph = self._session = None
        self._slots.clear()
        self._calls.clear()

    def _add(self, types: Sequence[tuple[Any, tuple[int, ...]]]) -> Slot:
        slot = Slot(len(self._slots), tuple(types))
        with defer_interrupt(), self._graph.as_default():
            for name, (dtype, shape) in zip(slot.names, types, strict=True):
                self._add_array(slot, name, tf.as_dtype(dtype), shape)
        self._slots.append(slot)
        return slot

    def _add_array(self, slot: Slot, name: str, dtype: tf.DType, shape: tuple[int, ...]) -> None:
        with tf.device(self._chief):
            size = tf.compat.v1.placeholder(tf.int64, [len(shape) + 1])
            begin = tf.compat.v1.placeholder(tf.int64, [1])
            source = rows = tf.compat.v1.placeholder(dtype, [None, *shape])
            end = begin + tf.shape(rows, tf.int64)[:1]
        makes, writes = [], []
        for host in self._hosts:
            with tf.device(host):
                handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=[None, *shape], shared_name=name)
                zeros = tf.zeros(tf.identity(size), dtype)
                makes.append(tf.raw_ops.AssignVariableOp(resource=handle, value=zeros))
                rows = tf.identity(rows)
                writes.append(
                    tf.raw_ops.ResourceStridedSliceAssign(ref=handle, begin=begin, end=end, strides=[1], value=rows)
                )
                slot.ends.append(tf.raw_ops.DestroyResourceOp(resource=handle))
        slot.makers.append((size, makes))
        slot.writers.append((begin, source, writes))

    def _send(self, slot: Slot, kept: KeptArrays) -> None:
        doing, sent, whole = "the sending of the data", 0, format_bytes(kept.nbytes)
        said = time.monotonic() + _FIRST_SECONDS
        for index, array in enumerate(kept.arrays):
            size, makes = slot.makers[index]
            self._run(doing, (slot, "make", index), makes, [size], [np.array(array.shape, np.int64)])
            begin, source, writes = slot.writers[index]
            each = max(1, MESSAGE_BYTES * len(array) // max(1, bytes_of(array)))
            for start in range(0, len(array), each):
                part = array[start : start + each]
                self._run(doing, (slot, "write", index), writes, [begin, source], [np.array([start]), part])
                sent += bytes_of(part)
                if time.monotonic() > said:
                    said = time.monotonic() + _NEXT_SECONDS
                    machines = f"{len(self._hosts)} machine{'' if len(self._hosts) == 1 else 's'}"
                    log.info("sent %s of the data of %s to %s", format_bytes(sent), whole, machines)

    def _run(
        self, doing: str, key: Any, nodes: Sequence[Any], feeds: Sequence[Any] = (), arrays: Sequence[Any] = ()
    ) -> None:
        if key not in self._calls:
            with defer_interrupt():
                self._calls[key] = self._session.make_callable(list(nodes), feed_list=list(feeds))
        self._call(doing, self._calls[key], *arrays)
