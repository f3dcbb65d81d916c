"""Arrays that travel from the user's process to variables on several machines, in messages of a limited size.

In: arrays, and the machines that are to have them. Out: a `Place` on each of these machines, from which a graph reads
them. Each machine passes a message on to the next one, so the chief sends the arrays once. A line in the log says how
far a sending is that takes long. `KeptData` sends the arrays of a training so, and `PipelinesOnMachines` the graph of a
dataset.

>>> session = tf.compat.v1.Session(graph=tf.Graph(), config=tf.compat.v1.ConfigProto(device_count={"CPU": 2}))
>>> sender = Sender(session, "/device:CPU:0", lambda doing, call, *rest: call(*rest))
>>> place = sender.place(["numbers"], [(np.dtype("int64"), ())], ["/device:CPU:1"])
>>> sender.send(place, [np.array([4, 5, 6])], "the numbers")
>>> place.held, place.broken
(True, False)
>>> sender.free(place, "the release of the numbers")
>>> session.close()
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class Sender:
    """Sends arrays from the user's process, in one session. The module has an example."""

    def __init__(self, session: Any, chief: str, call: Callable[..., Any]) -> None:
        self._session, self._chief, self._call = session, chief, call
        self._calls: dict[Place, tuple[list[Callable[..., Any]], list[Callable[..., Any]], Callable[[], Any]]] = {}
        """For each place: what makes zeros of a shape and what writes rows, of each array; and the end."""

    def place(self, names: Sequence[str], types: Sequence[tuple[Any, tuple[int, ...]]], hosts: Sequence[str]) -> Place:
        """A new place for arrays with these names, types and shapes of a row."""
        place, callable_of = Place(tuple(names), tuple(hosts)), self._session.make_callable
        with defer_interrupt(), self._session.graph.as_default():
            added = [self._added(name, *each, hosts) for name, each in zip(names, types, strict=True)]
            makes, writes = ([callable_of(*each[index]) for each in added] for index in (0, 1))
            self._calls[place] = makes, writes, callable_of([node for _, _, ends in added for node in ends])
        return place

    def send(self, place: Place, arrays: Sequence[np.ndarray], what: str) -> None:
        """Send arrays to a place. `what` says what they are."""
        doing, sent, pace = f"the sending of {what}", 0, Pace()
        whole = format_bytes(sum(map(bytes_of, arrays)))
        makes, writes, _ = self._calls[place]
        place.held = place.broken = True
        for array, make, write in zip(arrays, makes, writes, strict=True):
            self._call(doing, make, np.array(array.shape, np.int64))
            each = max(1, MESSAGE_BYTES * len(array) // max(1, bytes_of(array)))
            for start in range(0, len(array), each):
                part = array[start : start + each]
                self._call(doing, write, np.array([start]), part)
                sent += bytes_of(part)
                if pace.is_due():
                    machines = amount(len(place.hosts), "machine")
                    log.info("sent %s of %s of %s to %s", format_bytes(sent), what, whole, machines)
        place.broken = False

    def free(self, place: Place, doing: str) -> None:
        """Free the memory of a place. The next arrays may be sent to it."""
        place.held = False
        self._call(doing, self._calls[place][-1])

    def _added(self, name: str, kind: Any, shape: tuple[int, ...], hosts: Sequence[str]) -> tuple[Any, Any, list[Any]]:
        """The operations for one array, with their feeds: those that make it, those that write rows, and the end."""
        dtype = tf.as_dtype(kind)
        with tf.device(self._chief):
            size = tf.compat.v1.placeholder(tf.int64, [len(shape) + 1])
            begin = tf.compat.v1.placeholder(tf.int64, [1])
            source = rows = tf.compat.v1.placeholder(dtype, [None, *shape])
            end = begin + tf.shape(rows, tf.int64)[:1]
        makes, writes, ends = [], [], []
        for host in hosts:
            with tf.device(host):
                handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=[None, *shape], shared_name=name)
                zeros = tf.zeros(tf.identity(size), dtype)
                makes.append(tf.raw_ops.AssignVariableOp(resource=handle, value=zeros))
                rows = tf.identity(rows)
                writes.append(
                    tf.raw_ops.ResourceStridedSliceAssign(ref=handle, begin=begin, end=end, strides=[1], value=rows)
                )
                ends.append(tf.raw_ops.DestroyResourceOp(resource=handle))
        return (makes, [size]), (writes, [begin, source]), ends


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
