"""Values of variables in a file, so that a backup takes no memory of the program.

In: values. Out: each as it is kept: a small one in memory, and a large one too as long as there are few of them, since
memory is faster. The others are in the file. It has no name, so nothing is left of it when the process ends. It lies in
the folder that `TMPDIR` names, else in `/var/tmp`, which is on a disk where `/tmp` may be memory.

>>> on_disk = OnDisk()
>>> on_disk.most_in_memory = 0
>>> kept = on_disk.keep(np.arange(1e6))
>>> type(kept).__name__, array_of(kept)[-1].item(), on_disk.size
('Kept', 999999.0, 8000000)
>>> del kept
>>> kept = on_disk.keep(np.ones(10**6))
>>> on_disk.size
8000000
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autodist_core.log import log

LARGE_BYTES = 1 << 20
"""The least bytes of a value that is kept in the file."""


@dataclass(frozen=True, eq=False)
class Kept:
    """A value in the file. Its place is free for others when nobody has this object any more.

    >>> Kept(OnDisk(), 0, np.dtype("float32"), (3, 2)).size
    24
    """

    owner: OnDisk
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def array_of(kept: Kept | np.ndarray) -> np.ndarray:
    """The value, which cannot be written. What is read of it is in memory as long as the array exists."""
    if isinstance(kept, np.ndarray):
        return kept
    mapped: Any = np.memmap(kept.owner.file, np.uint8, "r", kept.offset, (kept.size,))
    mapped.kept = kept  # the place is not free before the array is gone
    value: np.ndarray = mapped.view(np.ndarray).view(kept.dtype).reshape(kept.shape)
    return value


class Arrays(Mapping[str, np.ndarray]):
    """Kept values by name, each as an array that is made when somebody asks for it.

    >>> Arrays({"w": np.ones(2)})["w"].tolist()
    [1.0, 1.0]
    """

    def __init__(self, kept: Mapping[str, Kept | np.ndarray]) -> None:
        self._kept = kept

    def __getitem__(self, name: str) -> np.ndarray:
        return array_of(self._kept[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class OnDisk:
    """The file of one backup. The module has an example."""

    most_in_memory = 1 << 26
    """The bytes of large values that are kept in memory all the same."""

    def __init__(self) -> None:
        self._in_memory = 0
        self.file: Any = None
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        """The places that nobody has any more, by their bytes."""
        self.size = 0
        """The bytes of the file."""

    def keep(self, value: np.ndarray, is_own: bool = False) -> Kept | np.ndarray:
        """Keep a value. What stays in memory is a copy, unless the array `is_own`: nobody else writes to it."""
        if value.nbytes < LARGE_BYTES or value.dtype.hasobject:
            return _in_memory(value, is_own)
        if self._in_memory + value.nbytes <= self.most_in_memory:
            kept = _in_memory(value, is_own)
            self._count(kept.nbytes)
            weakref.finalize(kept, self._count, -kept.nbytes)
            return kept
        try:
            return self._write(value)
        except OSError as error:
            log.warning(
                "%.0f MiB of a backup are kept in memory, since the folder for them, %s, takes no more: %s. The "
                "environment variable TMPDIR may name another folder.", value.nbytes / (1 << 20), folder(), error,
            )
            return _in_memory(value, is_own)

    def _count(self, size: int) -> None:
        self._in_memory += size

    def _write(self, value: np.ndarray) -> Kept:
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=folder(), buffering=0)  # noqa: SIM115 - open as long as this object
            weakref.finalize(self, self.file.close)
        size = value.nbytes
        offset = self._free[size].pop() if self._free[size] else self.size
        kept = Kept(self, offset, value.dtype, value.shape)
        weakref.finalize(kept, self._free[size].append, offset)
        self.size = max(self.size, offset + size)
        rest = memoryview(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        while rest:
            written = os.pwrite(self.file.fileno(), rest, offset)
            rest, offset = rest[written:], offset + written
        return kept


def _in_memory(value: np.ndarray, is_own: bool) -> np.ndarray:
    kept = value if is_own else np.array(value)
    kept.flags.writeable = False
    return kept


def folder() -> str:
    """The folder in which the file lies.

    >>> os.path.isdir(folder())
    True
    """
    named = os.environ.get("TMPDIR")
    return named or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir())
