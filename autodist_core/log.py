"""What the project says while it runs: the logger `autodist`, its level, and lines on what is awaited.

In: the environment variable AUTODIST_LOG, when the package is imported. Out: records of the logger `autodist`. At level
`info`, which is the default, a training says once what it does, a wait for machines says for which, and so does a stage
that takes long. At level `debug`, each stage of a training says how long it took.

A program that configures no logging sees the records on standard error. In any other program, the handlers of the
program get them.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from autodist_core.errors import amount, did_you_mean, some

LEVELS = ("error", "warning", "info", "debug")
_FIRST_SECONDS, _NEXT_SECONDS = 2.0, 5.0
_NAMES = 5

log = logging.getLogger("autodist")


def level(environment: Mapping[str, str] = os.environ) -> str:
    """The level that AUTODIST_LOG names; empty if it names none.

    >>> level({"AUTODIST_LOG": "debug"}), level({})
    ('debug', '')
    >>> level({"AUTODIST_LOG": "inof"})
    Traceback (most recent call last):
    ValueError: AUTODIST_LOG='inof' is none of error, warning, info, debug. Did you mean 'info'?
    """
    text = environment.get("AUTODIST_LOG", "")
    if text and text.lower() not in LEVELS:
        raise ValueError(f"AUTODIST_LOG={text!r} is none of {', '.join(LEVELS)}.{did_you_mean(text.lower(), LEVELS)}")
    return text.lower()


class Shown(logging.Handler):
    """Shows records on standard error in a program that has no handlers of its own for them.

    >>> shown = Shown()
    >>> shown.format(logging.makeLogRecord({"msg": "64 per step"}))
    'autodist: 64 per step'
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("autodist: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. A notebook gives each cell a standard error of its own, so it is looked up each time."""
        others = [*log.handlers, *(logging.getLogger().handlers if log.propagate else ())]
        if others != [self] or sys.stderr is None:
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)


def set_up(environment: Mapping[str, str] = os.environ) -> None:
    """Give the logger its level and its handler. A level that the program has set stays, unless AUTODIST_LOG is set.

    >>> set_up({})
    >>> [type(handler).__name__ for handler in log.handlers]
    ['Shown']
    """
    named = level(environment)
    if named or log.level == logging.NOTSET:
        log.setLevel((named or "info").upper())
    if not any(isinstance(handler, Shown) for handler in log.handlers):
        log.addHandler(Shown())


class Waiting:
    """Says for which machines the program waits: the first time after 2 seconds, and then every 5 seconds.

    `doing` says what the machines have to do, and `seconds` is the deadline.

    >>> waiting = Waiting("start TensorFlow", total=4, seconds=60)
    >>> waiting.on(["10.0.0.2", "10.0.0.3"], since=time.monotonic() - 12.4)
    'waiting for 2 of 4 machines to start TensorFlow: 10.0.0.2, 10.0.0.3 (12 s of 60)'
    >>> waiting.on(["10.0.0.3"], since=time.monotonic() - 16)
    ''
    """

    def __init__(self, doing: str, total: int, seconds: float, first: float = _FIRST_SECONDS) -> None:
        self._doing, self._total, self._seconds = doing, total, seconds
        self._first = self._next = first

    def on(self, names: Sequence[str], since: float) -> str:
        """Note that these machines are awaited since a moment of `time.monotonic`. Return the line that was logged."""
        waited = time.monotonic() - since
        if not names:
            self._next = self._first
        if not names or waited < self._next:
            return ""
        self._next = waited + _NEXT_SECONDS
        line = (
            f"waiting for {len(names)} of {amount(self._total, 'machine')} to {self._doing}: "
            f"{some(names, _NAMES)} ({waited:.0f} s of {self._seconds:g})"
        )
        log.info("%s", line)
        return line


class Pace:
    """When the next line on long work is due: the first time after 2 seconds, and then every 5 seconds.

    `since` is the moment of `time.monotonic` at which the work began.

    >>> pace = Pace(since=time.monotonic() - 12.4)
    >>> pace.is_due(), pace.is_due(), round(pace.seconds)
    (True, False, 12)
    """

    def __init__(self, since: float | None = None) -> None:
        self._since = time.monotonic() if since is None else since
        self._next = self._since + _FIRST_SECONDS

    @property
    def seconds(self) -> float:
        """How long the work has taken."""
        return time.monotonic() - self._since

    def is_due(self) -> bool:
        """Whether a line is due now. If so, the next one is due some seconds later."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _NEXT_SECONDS
        return True


@contextmanager
def stage(name: str, doing: str = "", seconds: float = _FIRST_SECONDS) -> Iterator[None]:
    """Log how long a stage of a training took, at level `debug`.

    With `doing`, a stage that takes longer than some seconds says at level `info` what is done, while it goes on.

    >>> with stage("the strategy"):
    ...     pass
    """
    begin = time.perf_counter()
    told = threading.Timer(seconds, log.info, ["%s: %g s so far", doing, seconds])
    told.daemon = True
    if doing:
        told.start()
    try:
        yield
    finally:
        told.cancel()
    log.debug("%s: %.2f s", name, time.perf_counter() - begin)
