"""Let the machines write large variables to files themselves: nothing of these passes through the program.

In: a path in a folder that all machines see, and variables. Out: a checkpoint of TensorFlow with that path. Each
machine writes the copies and shards that it has to files of about 64 MiB, one after the other. The program then renames
the files and joins their indices, which makes one checkpoint of them.

>>> import tempfile
>>> session = tf.compat.v1.Session(graph=tf.Graph())
>>> table, copy = Variable("table", (500, 300), "float64"), Copy("table@replica0", "/device:CPU:0")
>>> with session.graph.as_default():
...     value = tf.reshape(tf.range(150000, dtype=tf.float64), table.shape)
...     session.run(tf.raw_ops.AssignVariableOp(resource=handle_of(table, copy), value=value))
>>> parts = WrittenParts(session, lambda doing, call, *arguments: call(*arguments))
>>> with tempfile.TemporaryDirectory() as folder:
...     parts.write(f"{folder}/state", {"table": (table, [(table, copy)])})
...     print(sorted(path.name for path in Path(folder).iterdir()), read_parts(f"{folder}/state", [table])[0][499, 299])
True
['state.data-00000-of-00001', 'state.index'] 149999.0
>>> session.close()
"""

from __future__ import annotations

import glob
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Copy
from autodist_core.log import log
from autodist_core.runtime.data_pipelines.failed_batches import in_one_line
from autodist_core.runtime.large_reads import LARGE_BYTES, WITHOUT_KERNELS, Source, handle_of, rows_of
from autodist_core.runtime.recovery.on_disk import fill, room
from autodist_core.runtime.transfers import PIECE_BYTES, Piece, messages, pieces
from autodist_core.step.graph_item import Variable
from autodist_core.step.grouping import grouped

_NOT_JOINED = *WITHOUT_KERNELS, "float16", "uint16", "uint32", "uint64"
"""How the names of types begin of which TensorFlow writes no parts, or does not join them when it reads."""
_ALIGNED = 64
"""The bytes at a multiple of which each value begins."""

Wanted = Mapping[str, tuple[Variable, Sequence[Source]]]
"""Variables by name, each with the copy of it that counts, or with one of each of its shards."""


class WrittenParts:
    """Writes the large variables of one session. The module has an example."""

    def __init__(self, session: Any, call: Callable[..., Any]) -> None:
        self._session, self._call = session, call
        with session.graph.as_default():
            self._path = tf.compat.v1.placeholder(tf.string, ())
        self._made: dict[tuple[str, ...], tuple[list[Any], list[Any], list[str]]] = {}
        """For variables: what looks for a file on each machine, what writes, and what follows the path in the names."""

    @staticmethod
    def takes(variable: Variable, sources: Iterable[Source], host: str) -> bool:
        """Whether a variable is written here: it is large, and some of it is on another machine than that of `host`.

        >>> WrittenParts.takes(Variable("bias", (10,), "float32"), [], "/job:run/task:0/device:CPU:0")
        False
        """
        written = variable.byte_size >= LARGE_BYTES and not variable.dtype.startswith(_NOT_JOINED)
        return written and any(host_of(copy.device) != host for _, copy in sources)

    def write(self, path: str, wanted: Wanted) -> bool:
        """Write these variables. False if the machines cannot write there; what they have begun to write then stays."""
        key = tuple(wanted)
        if key not in self._made:
            with defer_interrupt():
                self._made[key] = self._make(wanted)
        looks, writes, ends = self._made[key]
        if not self._is_seen(path, looks):
            return False
        try:
            if (error := self._call("the writing of a state", self._run, writes, path)) is not None:
                raise error
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[f"{path}{end}" for end in ends], destination_prefix=path, delete_old_dirs=False
            )
        except tf.errors.OpError as failed:
            if failed.op is not None and failed.op.type != "SaveV2":
                raise
            log.warning("The machines could not write %s, so the program writes: %s", path, in_one_line(failed))
            return False
        return True

    def _is_seen(self, path: str, looks: Sequence[Any]) -> bool:
        """Whether all machines see a file that the program makes where they are to write."""
        seen = Path(f"{path}.part-{uuid.uuid4().hex}")
        with suppress(OSError):  # the program meets it when it writes, and says so
            seen.touch()
        pattern = {self._path: glob.escape(str(seen))}
        found = self._call("a look at the folder of states", self._session.run, looks, pattern)
        with suppress(OSError):
            seen.unlink()
        if not (all_see := all(map(len, found))):
            log.debug("%s is not seen by all machines", seen.parent)
        return all_see

    def _run(self, writes: Sequence[Any], path: str) -> tf.errors.OpError | None:
        """Write; return the error of a file. The error of a lost machine is raised."""
        try:
            self._session.run(writes, {self._path: path})
        except tf.errors.OpError as error:
            if error.op is None or error.op.type != "SaveV2":
                raise
            return error
        return None

    def _make(self, wanted: Wanted) -> tuple[list[Any], list[Any], list[str]]:
        wholes = {source: (whole, copy) for whole, sources in wanted.values() for source, copy in sources}
        looks, writes, ends = [], [], list[str]()
        with self._session.graph.as_default():
            for host, sources in grouped(wholes, lambda source: host_of(wholes[source][1].device)).items():
                with tf.device(host):
                    looks.append(tf.raw_ops.MatchingFiles(pattern=self._path))
                last, found = list[Any](), (piece for source in sources for piece in pieces(source, PIECE_BYTES))
                for message in messages(found, PIECE_BYTES):
                    ends.append(f".part-{len(ends)}")
                    with tf.control_dependencies(last):
                        rows = [_rows(piece, wholes[piece.variable][1]) for piece in message]
                    with tf.device(host):
                        last = [
                            tf.raw_ops.SaveV2(
                                prefix=tf.strings.join([self._path, ends[-1]]), tensors=rows,
                                tensor_names=[wholes[piece.variable][0].name for piece in message],
                                shape_and_slices=[_slice(piece, wholes[piece.variable][0]) for piece in message],
                            )
                        ]
                writes += last
        return looks, writes, ends


def _rows(piece: Piece, copy: Copy) -> Any:
    with tf.device(copy.device):
        start, stop = piece.rows
        handle = handle_of(piece.variable, copy)
        return rows_of(handle, tf.as_dtype(piece.variable.dtype), start, stop - start)


def _slice(piece: Piece, whole: Variable) -> str:
    """Where the rows of a shard are in the whole variable, as TensorFlow's checkpoints say it."""
    source, (start, stop) = piece.variable, piece.rows
    begins, sizes = [0] * len(source.shape), list(source.shape)
    begins[source.axis], sizes[0] = source.offset, stop - start
    begins[0] += start
    places = zip(begins, sizes, strict=True)
    return " ".join([*map(str, whole.shape), ":".join(f"{begin},{size}" for begin, size in places)])


def read_parts(path: str, variables: Sequence[Variable]) -> list[np.ndarray]:
    """The values of variables in a checkpoint; many bytes are on the disk, in one file. The module has an example."""
    ends = list(accumulate(-(-variable.byte_size // _ALIGNED) * _ALIGNED for variable in variables))
    whole, found = room((ends[-1] if ends else 0,), np.dtype("uint8")), []
    for variable, begin in zip(variables, [0, *ends], strict=False):
        dtype = tf.as_dtype(variable.dtype)
        value = whole[begin : begin + variable.byte_size].view(dtype.as_numpy_dtype).reshape(variable.shape)
        for piece in pieces(variable, PIECE_BYTES):
            start, stop = piece.rows
            (rows,) = tf.raw_ops.RestoreV2(
                prefix=path, tensor_names=[variable.name], shape_and_slices=[_slice(piece, variable)], dtypes=[dtype]
            )
            fill(value[start:stop], rows.numpy())
        found.append(value)
    return found
