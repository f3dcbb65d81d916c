"""Finish the files of states in a thread, and decide when the next state is due.

In: what brings a written file to the disk, and the seconds that the training's thread spent on it. Out: whether a state
is due. The training waits for the disk before it writes the next state, and at its end.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

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
