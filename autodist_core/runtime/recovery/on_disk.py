"""Values of variables in a file, so that a backup takes no memory of the program.

In: values. Out: each as it is kept: a small one in memory, and a large one too as long as there are few of them, since
memory is faster. The others are in the file. It has no name, so nothing is left of it when the process ends. It lies in
the folder that `TMPDIR` names, else in `/var/tmp`, which is on a disk where `/tmp` may be memory. `room` is for values
that are too large for the memory: whoever reads or makes one in parts writes these to the disk at once.

>>> on_disk = OnDisk()
>>> on_disk.most_in_memory = 0
>>> kept = on_disk.keep(np.arange(1e6))
>>> type(kept).__name__, array_of(kept)[-1].item(), on_disk.size
('Kept', 999999.0, 8000000)
>>> del kept
>>> kept = on_disk.keep(np.ones(10**6))
>>> on_disk.size
8000000
>>> huge = room((1 << 15, 1 << 10), np.dtype("float64"))
>>> fill(huge[:2], np.full((2, 1 << 10), 7.0))
>>> kept = on_disk.keep(huge, is_own=True)
>>> on_disk.size, array_of(kept)[1, :3].tolist()
(8000000, [7.0, 7.0, 7.0])
>>> kept = on_disk.keep(huge[:256], is_own=True)
>>> array_of(kept).shape
(256, 1024)
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from autodist_core.log import log

LARGE_BYTES = 1 << 20
"""The least bytes of a value that is kept in the file."""
HUGE_BYTES = 1 << 28
"""The least bytes of a value that is never in the memory as a whole."""


class Away(ABC):
    """A value that is not in memory.

    >>> on_disk = OnDisk()
    >>> on_disk.most_in_memory = 0
    >>> kept = on_disk.keep(np.ones(10**6))
    >>> isinstance(kept, Away), kept.nbytes, kept.array()[0].item()
    (True, 0, 1.0)
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes = 0
    """The bytes that it takes in memory."""

    @abstractmethod
    def array(self) -> np.ndarray:
        """The value. What is read of it is in memory as long as the array exists."""


@dataclass(frozen=True, eq=False)
class Kept(Away):
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

    def array(self) -> np.ndarray:
        """The value. What is written to the array stays there."""
        return _mapped(self, "c")


def array_of(kept: Any) -> np.ndarray:
    """The value as an array."""
    return kept.array() if isinstance(kept, Away) else kept


def _mapped(kept: Kept, mode: Literal["c", "r+"]) -> np.ndarray:
    mapped: Any = np.memmap(kept.owner.file, np.uint8, mode, kept.offset, (kept.size,))
    mapped.kept = kept  # the place is not free before the array is gone
    return mapped.view(np.ndarray).view(kept.dtype).reshape(kept.shape)


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array to be filled: in memory, or on the disk if it is huge. The module has an example."""
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    try:
        kept = Kept(OnDisk(), 0, dtype, shape)
        # A full disk would end the process when the array is written.
        os.posix_fallocate(kept.owner.opened(), 0, size)
    except OSError as error:
        _note_memory(size, error)
        return np.empty(shape, dtype)
    return _mapped(kept, "r+")


def fill(target: np.ndarray, value: np.ndarray) -> None:
    """Write to an array that `room` has made, or to a part of it. The disk's pages are not mapped for that, which took
    eight times as long.
    """
    mapped = _room_of(target)
    if mapped is None or not target.flags.c_contiguous:
        target[...] = value
        return
    value = np.ascontiguousarray(value, target.dtype)
    mapped.kept.owner.write(value, target.ctypes.data - mapped.ctypes.data)


def is_huge(array: Any) -> bool:
    """Whether `room` has made this array on the disk.

    >>> is_huge(room((3,), np.dtype("float32"))), is_huge("others")
    (False, False)
    """
    return _room_of(array) is not None


def _room_of(array: Any) -> Any:
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    # A user's file that is mapped has no place.
    return array if array is not None and array.mode == "r+" and hasattr(array, "kept") else None


def _place_of(value: np.ndarray) -> Kept | None:
    """The place of an array of `room`; None for others, and for a part or another order of one, as `value.T`."""
    mapped = _room_of(value)
    kept: Kept | None = None if mapped is None else mapped.kept
    is_whole = kept is not None and value.flags.c_contiguous and (value.dtype, value.shape) == (kept.dtype, kept.shape)
    return kept if is_whole else None


class OnDisk:
    """The file of one backup, or of one array. The module has an example."""

    most_in_memory = 1 << 26
    """The bytes of large values that are kept in memory all the same."""

    def __init__(self) -> None:
        self._in_memory = 0
        self.file: Any = None
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        """The places that nobody has any more, by their bytes."""
        self.size = 0
        """The bytes of the file."""
        self._lock = threading.Lock()

    def keep(self, value: Away | np.ndarray, is_own: bool = False) -> Away | np.ndarray:
        """Keep a value. It is copied, unless the array `is_own`, or is one of `room` that nobody can write any more."""
        if isinstance(value, Away):
            return value
        if value.nbytes < LARGE_BYTES or value.dtype.hasobject:
            return _in_memory(value, is_own)
        if (is_own or not value.flags.writeable) and (placed := _place_of(value)) is not None:
            return placed
        if value.nbytes < HUGE_BYTES and self._in_memory + value.nbytes <= self.most_in_memory:
            kept = _in_memory(value, is_own)
            self._count(kept.nbytes)
            weakref.finalize(kept, self._count, -kept.nbytes)
            return kept
        try:
            return self._placed(value)
        except OSError as error:
            _note_memory(value.nbytes, error)
            return _in_memory(value, is_own)

    def opened(self) -> int:
        """The number of the file, which is made when it is first needed."""
        if self.file is None:
            self.file = tempfile.TemporaryFile(dir=folder(), buffering=0)  # noqa: SIM115 - open as long as this object
            weakref.finalize(self, self.file.close)
        return self.file.fileno()

    def _count(self, size: int) -> None:
        self._in_memory += size

    def _placed(self, value: np.ndarray) -> Kept:
        size = value.nbytes
        with self._lock:  # several threads may assign values
            self.opened()
            offset = self._free[size].pop() if self._free[size] else self.size
            self.size = max(self.size, offset + size)
        kept = Kept(self, offset, value.dtype, value.shape)
        weakref.finalize(kept, self._free[size].append, offset)
        self.write(np.ascontiguousarray(value), offset)
        return kept

    def write(self, value: np.ndarray, offset: int) -> None:
        """Write an array to this place of the file."""
        of_bytes: Any = value.reshape(-1).view(np.uint8)
        rest = memoryview(of_bytes)
        while rest:
            written = os.pwrite(self.opened(), rest, offset)
            rest, offset = rest[written:], offset + written


def _note_memory(size: int, error: OSError) -> None:
    log.warning(
        "%.0f MiB of a backup are kept in memory, since the folder for them, %s, takes no more: %s. The "
        "environment variable TMPDIR may name another folder.", size / (1 << 20), folder(), error,
    )


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
