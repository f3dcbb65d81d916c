"""Read large variables from the servers of a cluster: in parts of about 2 MiB, several of them at a time.

In: variables, and the copies that are read. Out: an array for each variable. TensorFlow copies what a server answers
several times, and an answer of many MiB into new memory each time. So 100 MB in parts of 2 MiB come from another
process of the same machine in about a third of the time of one answer. From another machine, one part is on its way
while another one is copied.

A part is some rows, which `ResourceGather` reads. `ReadVariableOp` would copy the whole variable for each part, once a
step has written some of its rows: 2 GiB would be copied a thousand times.

All copies of one device and one type share one operation, which gets the number of the copy. An operation for each part
would cost TensorFlow some milliseconds each, at the first read.

>>> session, table = tf.compat.v1.Session(graph=tf.Graph()), Variable("table", (500, 300), "float64")
>>> copy = Copy("table@replica0", "/device:CPU:0")
>>> with session.graph.as_default():
...     value = tf.reshape(tf.range(150000, dtype=tf.float64), table.shape)
...     session.run(tf.raw_ops.AssignVariableOp(resource=handle_of(table, copy), value=value))
>>> reads = LargeReads(session, lambda doing, call, *arguments: call(*arguments))
>>> [(name, value[499, 299].item()) for name, value in reads.read_each({"table": (table, [(table, copy)])})]
[('table', 149999.0)]
>>> reads.takes(table, [(table, copy)])
True
>>> session.close()
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.cluster.agents.in_parallel import run_in_parallel
from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel.placement.placement import Copy
from autodist_core.runtime.recovery.on_disk import fill, room
from autodist_core.step.graph_item import Variable
from autodist_core.step.grouping import grouped

LARGE_BYTES = 1 << 19
_PART_BYTES = 1 << 21
_TOGETHER_BYTES = 1 << 25
_AT_A_TIME = 3
WITHOUT_KERNELS = ("float8", "int4", "uint4", "int2", "uint2")
"""How the names of types begin for which TensorFlow has no `ResourceGather` and no `DeepCopy`."""

Source = tuple[Variable, Copy]
"""A copy that is read, and the variable, or the shard of it, that it is a copy of."""
_Wanted = Mapping[str, tuple[Variable, Sequence[Source]]]


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads units of one copy: the callable of its device and type, its number there, and the entries of a unit."""

    call: Callable[..., Any]
    number: int
    unit: int


_Part = tuple[_Reader, int, np.ndarray]
"""The reader of a copy, the first one of the units that it reads, and the memory to which they are written."""


class LargeReads:
    """Reads the large variables of one session. The module has an example."""

    def __init__(self, session: Any, call: Callable[..., Any]) -> None:
        self._session = session
        self._call = call
        self._readers: dict[Copy, _Reader] = {}

    @staticmethod
    def takes(variable: Variable, sources: Iterable[Source]) -> bool:
        """Whether a variable is read here: it is large, and what is read is in the main memory of machines.

        >>> LargeReads.takes(Variable("bias", (10,), "float32"), [])
        False
        """
        return variable.byte_size >= LARGE_BYTES and all("/device:CPU:" in copy.device for _, copy in sources)

    def read_each(self, wanted: _Wanted) -> Iterator[tuple[str, np.ndarray]]:
        """The values of variables, each from one copy of it or from one copy of each of its shards.

        Variables of some MiB together are read at the same time, and are in memory together.
        """
        self._prepare([source for _, sources in wanted.values() for source in sources])
        group: dict[str, tuple[Variable, Sequence[Source]]] = {}
        for name, (variable, sources) in wanted.items():
            group[name] = variable, sources
            if sum(each.byte_size for each, _ in group.values()) >= _TOGETHER_BYTES:
                yield from self._read(group).items()
                group = {}
        yield from self._read(group).items()

    def _read(self, wanted: _Wanted) -> dict[str, np.ndarray]:
        found, parts, joins = {}, list[_Part](), []
        for name, (variable, sources) in wanted.items():
            found[name] = room(variable.shape, np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype))
            for source, copy in sources:
                target = source.entries_of(found[name])
                memory = target if target.flags.c_contiguous else room(target.shape, target.dtype)
                if memory is not target:
                    joins.append((target, memory))
                parts += self._parts(copy, memory.reshape(-1))
        self._call("the moving of variables", _fetch_all, parts)
        for target, memory in joins:
            target[...] = memory
        return found

    def _parts(self, copy: Copy, flat: np.ndarray) -> Iterable[_Part]:
        reader = self._readers[copy]
        size = reader.unit * max(1, _PART_BYTES // (reader.unit * flat.itemsize))
        return [(reader, begin // reader.unit, flat[begin : begin + size]) for begin in range(0, flat.size, size)]

    def _prepare(self, sources: Iterable[Source]) -> None:
        """Make the operations for copies that were not read before: one for each device and type."""
        new = [(variable, copy) for variable, copy in sources if copy not in self._readers]
        groups = grouped(new, lambda source: (source[1].device, source[0].dtype, _by_rows(source[0])))
        with defer_interrupt():
            for (device, dtype, by_rows), found in groups.items():
                with self._session.graph.as_default(), tf.device(device):
                    feeds = [tf.compat.v1.placeholder(tf.int64, ()) for _ in range(3)]
                    handles = tf.stack([handle_of(*source) for source in found])
                    handle = tf.raw_ops.GatherV2(params=handles, indices=feeds[0], axis=0)
                    read = (rows_of if by_rows else _entries)(handle, tf.as_dtype(dtype), *feeds[1:])
                    entries = tf.reshape(read, [-1])
                call = self._session.make_callable(entries, feed_list=feeds)
                for number, (variable, copy) in enumerate(found):
                    self._readers[copy] = _Reader(call, number, math.prod(variable.shape[1:]) if by_rows else 1)


def _by_rows(variable: Variable) -> bool:
    """Whether a part is some rows of the variable: if a row is not larger than a part."""
    return variable.byte_size <= _PART_BYTES * variable.shape[0] and not variable.dtype.startswith(WITHOUT_KERNELS)


def rows_of(handle: Any, dtype: Any, begin: Any, count: Any) -> Any:
    """Some rows of a variable, of which nothing else is copied: not now, and not by later reads and updates.

    >>> table = tf.Variable([[1], [2], [3]])
    >>> rows_of(table.handle, table.dtype, 1, 2).numpy().tolist()
    [[2], [3]]
    """
    rows = tf.raw_ops.ResourceGather(resource=handle, indices=tf.range(begin, begin + count), dtype=dtype)
    # From a gather on, each read of the variable copies it, and each update copies it and its slots: 67 MB of weights
    # with Adam took a step from 67 to 402 MB.
    with tf.control_dependencies([rows]), tf.control_dependencies([tf.raw_ops.DisableCopyOnRead(resource=handle)]):
        return tf.identity(rows)


def _entries(handle: Any, dtype: Any, begin: Any, count: Any) -> Any:
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    return tf.slice(tf.reshape(value, [-1]), [begin], [count])


def handle_of(variable: Variable, copy: Copy) -> Any:
    """The handle of TensorFlow's variable that is a copy of a variable. The module has an example."""
    return tf.raw_ops.VarHandleOp(
        dtype=tf.as_dtype(variable.dtype), shape=variable.shape, shared_name=copy.shared_name
    )


def _fetch_all(parts: Sequence[_Part]) -> None:
    """Fetch parts in several threads. The first error ends this."""
    left = iter(parts)

    def fetch(_: int) -> None:
        try:
            for reader, begin, target in left:
                fill(target, reader.call(reader.number, begin, target.size // reader.unit))
        finally:
            # After an error, the other threads find none.
            deque(left, maxlen=0)

    run_in_parallel(range(_AT_A_TIME), fetch)
