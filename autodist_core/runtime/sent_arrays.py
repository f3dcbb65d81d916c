"""Arrays that travel from the user's process to variables on several machines, in messages of a limited size.

In: arrays, and the machines that are to have them. Out: a `Place` on each of these machines, from which a graph reads
them. Each machine passes a message on to the next one, so the chief sends the arrays once. A line in the log says how
far a sending is that takes long. `KeptData` sends the arrays of a training so, and `PipelinesOnMachines` the graph of a
dataset.

>>> session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(device_count={"CPU": 2}))
>>> sender = Sender(session.graph, session, "/device:CPU:0", lambda doing, call, *rest: call(*rest))
>>> place = sender.place(["numbers"], [(np.dtype("int64"), ())], ["/device:CPU:1"])
>>> sender.send(place, [np.array([4, 5, 6])], "the numbers")
>>> place.held, place.broken
(True, False)
>>> sender.free(place, "the release of the numbers")
>>> session.close()
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import amount
from autodist_core.interrupts import defer_interrupt
from autodist_core.log import Pace, log
from autodist_core.step.graph_item import format_bytes

MESSAGE_BYTES = 1 << 26
"""The most bytes of one message, unless a single row has more."""
PART_BYTES = 1 << 22
"""The most bytes of a row that is a part of a text."""


@dataclass(eq=False)
class Place:
    """Variables of the same names on several machines, for arrays of these types. The module has an example."""

    names: tuple[str, ...]
    hosts: tuple[str, ...]
    held: bool = False
    """Whether the machines may have memory for its arrays."""
    broken: bool = False
    """Whether a sending was broken off. A late message of it may still come, so no other arrays get this place."""
    makers: list[tuple[Any, Any]] = field(default_factory=list)
    writers: list[tuple[Any, Any, Any]] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    """Operations of each array, with their feeds: zeros of a shape, rows from a first one on, and the end."""


class Sender:
    """Sends arrays from the user's process, in one session. The module has an example."""

    def __init__(self, graph: Any, session: Any, chief: str, call: Callable[..., Any]) -> None:
        self._graph, self._session, self._chief, self._call = graph, session, chief, call
        self._calls: dict[Any, Callable[..., Any]] = {}

    def place(
        self, names: Sequence[str], types: Sequence[tuple[Any, tuple[int, ...]]], hosts: Sequence[str]
    ) -> Place:
        """A new place for arrays with these names, types and shapes of a row."""
        place = Place(tuple(names), tuple(hosts))
        with defer_interrupt(), self._graph.as_default():
            for name, (dtype, shape) in zip(names, types, strict=True):
                self._add(place, name, tf.as_dtype(dtype), shape)
        return place

    def send(self, place: Place, arrays: Sequence[np.ndarray], what: str) -> None:
        """Send arrays to a place. `what` says what they are."""
        doing, sent, pace = f"the sending of {what}", 0, Pace()
        whole = format_bytes(sum(map(bytes_of, arrays)))
        place.held = place.broken = True
        for index, array in enumerate(arrays):
            size, makes = place.makers[index]
            self._run(doing, (place, "make", index), makes, [size], [np.array(array.shape, np.int64)])
            begin, source, writes = place.writers[index]
            each = max(1, MESSAGE_BYTES * len(array) // max(1, bytes_of(array)))
            for start in range(0, len(array), each):
                part = array[start : start + each]
                self._run(doing, (place, "write", index), writes, [begin, source], [np.array([start]), part])
                sent += bytes_of(part)
                if pace.is_due():
                    machines = amount(len(place.hosts), "machine")
                    log.info("sent %s of %s of %s to %s", format_bytes(sent), what, whole, machines)
        place.broken = False

    def free(self, place: Place, doing: str) -> None:
        """Free the memory of a place. The next arrays may be sent to it."""
        place.held = False
        self._run(doing, (place, "end"), place.ends)

    def _add(self, place: Place, name: str, dtype: tf.DType, shape: tuple[int, ...]) -> None:
        with tf.device(self._chief):
            size = tf.compat.v1.placeholder(tf.int64, [len(shape) + 1])
            begin = tf.compat.v1.placeholder(tf.int64, [1])
            source = rows = tf.compat.v1.placeholder(dtype, [None, *shape])
            end = begin + tf.shape(rows, tf.int64)[:1]
        makes, writes = [], []
        for host in place.hosts:
            with tf.device(host):
                handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=[None, *shape], shared_name=name)
                zeros = tf.zeros(tf.identity(size), dtype)
                makes.append(tf.raw_ops.AssignVariableOp(resource=handle, value=zeros))
                rows = tf.identity(rows)
                writes.append(
                    tf.raw_ops.ResourceStridedSliceAssign(ref=handle, begin=begin, end=end, strides=[1], value=rows)
                )
                place.ends.append(tf.raw_ops.DestroyResourceOp(resource=handle))
        place.makers.append((size, makes))
        place.writers.append((begin, source, writes))

    def _run(
        self, doing: str, key: Any, nodes: Sequence[Any], feeds: Sequence[Any] = (), arrays: Sequence[Any] = ()
    ) -> None:
        if key not in self._calls:
            with defer_interrupt():
                self._calls[key] = self._session.make_callable(list(nodes), feed_list=list(feeds))
        self._call(doing, self._calls[key], *arrays)


def bytes_of(array: np.ndarray) -> int:
    """The bytes that an array needs to travel. Of strings, numpy knows the addresses only.

    >>> bytes_of(np.ones(3)), bytes_of(np.array(["é", b"bcd"], object))
    (24, 5)
    """
    if array.dtype != object:
        return array.nbytes
    return sum(len(each.encode() if isinstance(each, str) else each) for each in array.ravel())


def in_parts(texts: Sequence[bytes]) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Texts cut into parts, one behind the other in an array, and where the parts of each text begin and end.

    >>> in_parts([b"ab", b"c"])
    (array([b'ab', b'c'], dtype=object), [(0, 1), (1, 2)])
    """
    parts: list[bytes] = []
    bounds = []
    for text in texts:
        begin = len(parts)
        parts += [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)]
        bounds.append((begin, len(parts)))
    return np.array(parts, object), bounds
