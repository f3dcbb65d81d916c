"""The files in which `Resume` keeps states: written as a whole or not at all, and checked when they are read.

In: a folder, and a state as the tree of `encoding.py`. Out: the newest state that is complete. A file is a zip archive
without compression: `state.json`, and one member for each array. A zip archive has a checksum for each member, and ends
with the list of its members. So a file that is cut off, or that holds another state than was written, is noticed. A
file gets its name only when all of it is on the disk; before that its name ends with `.partial`.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     files = StateFiles(folder, keep=1)
...     with files.locked():
...         files.begin({"step": 3}, [])()
...         files.begin({"step": 4}, [])()
...         found = files.newest()
...         print(found.name, found.tree, sorted(path.name for path in Path(folder).iterdir()))
state-00000002.resume {'step': 4} ['lock', 'state-00000002.resume']
"""

import fcntl
import json
import mmap
import os
import re
import socket
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_core.log import log
from autodist_core.runtime import read_parts
from autodist_core.step.graph_item import Variable
from autodist_keras.callbacks.resume.encoding import Later, name_of_type, type_of_name

_TREE = "state.json"
_STATE = re.compile(r"state-\d+\.resume")
_PART = re.compile(r"state-\d+\.(partial|index|data-\d+-of-\d+|part-\S+)")
_BROKEN = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, LookupError, TypeError, ValueError, RuntimeError,
    tf.errors.OpError,
)
"""What reading a file raises that is not a complete state. One changed bit can claim compression or a password."""

_PIECE = 1 << 20
_LARGE = 1 << 24
"""The bytes from which on an array stays in its file until it is used."""

_locks: set[Any] = set()
"""The files of the locks that this process holds."""


def _let_go() -> None:
    """Close the locks in a child process, which would hold them for as long as it lives."""
    for lock in _locks:
        lock.close()


os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True)
class Found:
    """A complete state: the name of its file, its tree, and the arrays that the tree names by their positions.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = StateFiles(folder, keep=1)
    ...     files.begin({"kernel": 0}, [np.ones(2)])()
    ...     print(files.newest())
    Found(name='state-00000001.resume', tree={'kernel': 0}, arrays=(array([1., 1.]),))
    """

    name: str
    tree: Any
    arrays: tuple[np.ndarray, ...]


class StateFiles:
    """The states of one training in one folder; at most `keep` files stay. The module has an example."""

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        # The program may change its directory while it trains.
        self.folder = Path(folder).absolute()
        self._keep = keep

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other programs out of the folder. The lock ends with the block, or with the process.

        A second program that trains into the same folder gets a SessionError.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / "lock", "a+")  # noqa: SIM115
        except (OSError, ValueError) as error:  # a path with a NUL character is a ValueError
            raise SessionError(
                f"Resume({str(self.folder)!r}): states cannot be written there ({error}). Pass a folder in which this "
                "program may make files."
            ) from None
        with file as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise SessionError(
                    f"Resume({str(self.folder)!r}): another fit uses this folder at the moment ({lock.read()}). "
                    "Let it end, or give this fit a folder of its own."
                ) from None
            except OSError as error:
                raise SessionError(
                    f"Resume({str(self.folder)!r}): the file 'lock' in it cannot be locked ({error}). Pass a folder "
                    "of a file system that has locks, so that two programs cannot train into one folder."
                ) from None
            _locks.add(lock)
            try:
                with suppress(OSError):  # a full disk is met when a state is written
                    os.ftruncate(lock.fileno(), 0)
                    os.write(lock.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
                self._delete_partial()
                yield
            finally:
                self._delete_partial()
                _locks.discard(lock)

    def newest(self) -> Found | None:
        """The newest complete state; None in a folder without states.

        An incomplete file is left out with a line in the log. If every file is incomplete, a SessionError names them.
        """
        paths = self._paths()
        for path in reversed(paths):
            try:
                return _read(path)
            except _BROKEN as error:
                log.warning(
                    "Resume: %s is not complete (%s: %s); the state before it is taken.", path, type(error).__name__,
                    error,
                )
        if paths:
            raise SessionError(
                f"Resume({str(self.folder)!r}): none of its {len(paths)} states can be read ("
                f"{', '.join(path.name for path in paths)}). Delete the folder to train from the start."
            )
        return None

    def next(self) -> Path:
        """The file of the next state. Machines write a checkpoint beside it, whose name has no suffix."""
        paths = self._paths()
        return self.folder / f"state-{_number(paths[-1]) + 1 if paths else 1:08}.resume"

    def begin(self, tree: Any, arrays: Sequence[Any]) -> Callable[[], None]:
        """Write a state to a new file; return what brings the file to the disk and deletes the oldest files.

        The state counts when that is done. If either fails, as on a full disk, the log says so, and the earlier states
        stay. The training goes on.
        """
        path = self.next()
        partial = path.with_suffix(".partial")

        with self._not_saved_if_it_fails(), open(partial, "wb") as file:
            _write(file, tree, arrays)

        return (lambda: self._finish(partial, path)) if partial.exists() else lambda: None

    @contextmanager
    def _not_saved_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._delete_partial()
            log.error(
                "Resume(%r): a state was not saved (%s). The training goes on, and after a failure it begins with an "
                "earlier state. See that the folder exists and has space.", str(self.folder), error,
            )  # fmt: skip

    def _finish(self, partial: Path, path: Path) -> None:
        with self._not_saved_if_it_fails():
            for each in self.folder.glob(f"{path.stem}.*"):
                with open(each, "rb") as file:  # machines' files may be another user's
                    os.fsync(file.fileno())
            os.rename(partial, path)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            _delete(self._paths()[: -self._keep])
            self._delete_partial()

    def _delete_partial(self) -> None:
        """Delete what belongs to no state, as an interrupted program leaves. Other files are not the project's."""
        whole = {path.stem for path in self._paths()}
        _delete(path for path in self._named(_PART) if path.suffix == ".partial" or path.stem not in whole)

    def _paths(self) -> list[Path]:
        return sorted(self._named(_STATE), key=_number)

    def _named(self, pattern: re.Pattern[str]) -> list[Path]:
        return [path for path in self.folder.glob("state-*") if pattern.fullmatch(path.name)]


def _delete(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # a folder, or a file of a user who alone may delete it
            path.unlink()


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _write(file: Any, tree: Any, arrays: Sequence[Any]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        types = [_write_array(archive, f"arrays/{index}", array) for index, array in enumerate(arrays)]
        archive.writestr(_TREE, json.dumps({"tree": tree, "arrays": types}))


def _write_array(archive: zipfile.ZipFile, name: str, array: Any) -> dict[str, Any]:
    """Write an array, and return its type and shape. Nothing of one that is read `Later` is in memory afterwards."""
    if isinstance(array, Variable):
        return {"dtype": array.dtype, "shape": array.shape, "variable": array.name}
    array = array.read() if isinstance(array, Later) else array
    with archive.open(name, "w", force_zip64=True) as member:
        # As bytes: an array of bfloat16 has no buffer.
        member.write(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
    return {"dtype": name_of_type(array.dtype), "shape": array.shape}


def _read(path: Path) -> Found:
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        content = json.loads(archive.read(_TREE))
        if not (isinstance(content, dict) and isinstance(content.get("tree"), dict)):
            raise ValueError(f"{_TREE} has no state")
        # Nobody else sees what is written to the arrays. One map for all: each map keeps its file open. It may be
        # larger than the machine's memory, since none is set aside for it: 0x4000 is Linux's MAP_NORESERVE.
        whole = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | 0x4000, mmap.PROT_READ | mmap.PROT_WRITE)
        variables = [
            Variable(each["variable"], each["shape"], each["dtype"]) for each in content["arrays"] if "variable" in each
        ]
        of_machines = iter(read_parts(str(path.with_suffix("")), variables))
        arrays = tuple(
            next(of_machines) if "variable" in each
            else _read_bytes(whole, archive, f"arrays/{index}").view(type_of_name(each["dtype"])).reshape(each["shape"])
            for index, each in enumerate(content["arrays"])
        )
    return Found(path.name, content["tree"], arrays)


def _read_bytes(whole: mmap.mmap, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """The bytes of a member, compared with its checksum. Those of a large one stay in the file until they are used."""
    known = archive.getinfo(name)
    if known.file_size != known.compress_size:
        # A changed bit may claim more bytes than there is memory.
        raise zipfile.BadZipFile(f"{name} claims {known.file_size} bytes, and has {known.compress_size}")
    if known.file_size < _LARGE:
        return np.frombuffer(bytearray(archive.read(name)), np.uint8)
    with archive.open(name) as member:
        # At the end the content is compared with the checksum.
        while member.read(_PIECE):
            pass
    # The numbers of bytes of the name and of what follows it, which are before the content.
    header = 30 + sum(struct.unpack_from("<HH", whole, known.header_offset + 26))
    return np.frombuffer(whole, np.uint8, known.file_size, known.header_offset + header)


SHARE = 0.02
"""The part of the time that saving may cost with `every="auto"`."""
_LEAST_SECONDS = 1.0
"""The least time between two states with `every="auto"`."""


class BackgroundWriter:
    """Runs one writing at a time in a thread.

    >>> writer, written = BackgroundWriter(), []
    >>> writer.start(lambda: written.append("a state"))
    >>> writer.finish()
    >>> writer.busy, written
    (False, ['a state'])
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="resume-writer")
        self._writing: Future[None] | None = None
        self.seconds = 0.0
        """The processor's time that the last writing took."""

    @property
    def busy(self) -> bool:
        """Whether a writing runs."""
        return self._writing is not None and not self._writing.done()

    def start(self, write: Callable[[], None]) -> None:
        """Run `write` in a thread. It waits for the writing before; an error of that one is raised here."""
        self.finish()
        self._writing = self._thread.submit(self._run, write)

    def finish(self) -> None:
        """Wait until the current writing is done, and raise its error."""
        if self._writing is not None:
            error = self._writing.exception()
            self._writing = None
            if error is not None:
                raise error

    def _run(self, write: Callable[[], None]) -> None:
        begun = time.thread_time()
        try:
            write()
        finally:
            self.seconds = time.thread_time() - begun


class Schedule:
    """Decides when a state is due: every so many batches, at each epoch's beginning, or as often as is cheap.

    >>> schedule = Schedule(2)
    >>> [schedule.is_due(batch, False) for batch in (0, 1, 2)]
    [False, False, True]
    >>> schedule.saved(2, seconds=0.1)
    >>> schedule.is_due(3, True)
    False
    """

    def __init__(self, every: int | str) -> None:
        self._every = every
        self._batches = 0
        self._next = 0.0

    def is_due(self, batches: int, begins: bool, busy: bool = False) -> bool:
        """Whether a state is due after so many batches.

        `begins` says that an epoch begins, and `busy` that the state before is still being written.
        """
        if batches == 0:
            return False
        if self._every == "epoch":
            return begins
        if self._every == "auto":
            return not busy and time.monotonic() >= self._next
        return batches - self._batches >= int(self._every)

    def saved(self, batches: int, seconds: float) -> None:
        """Note a state that was saved after so many batches, and the seconds that it cost."""
        self._batches = batches
        self._next = time.monotonic() + max(seconds / SHARE, _LEAST_SECONDS)
