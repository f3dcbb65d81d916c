"""Calls into TensorFlow whose wait ends when they return, when a node is lost, or when somebody presses Ctrl-C.

TensorFlow mostly hangs when a node goes, and a call of its cannot be interrupted. So each call is made by
another thread, one of those that are idle, and who wants it waits for whatever happens first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

from autodist_core.errors import NodeLostError, SessionError
from autodist_core.interrupts import defer_interrupt

_EXPLAINED_WITHIN = 3.0
"""How long after an error of the network the word of who is lost may take."""
_NETWORK = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
    tf.errors.UnknownError, tf.errors.DeadlineExceededError, tf.errors.NotFoundError,
)


@dataclass(eq=False)
class _Job:
    """A call to be made, and what came of it."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    result: Any = None
    error: BaseException | None = None

    def do(self) -> None:
        try:
            self.result = self.call(*self.arguments)
        except BaseException as error:
            self.error = error


@dataclass(frozen=True, eq=False)
class _Line:
    """A thread that makes calls; None on `jobs` ends it, and on `done` it says that a node is lost."""

    jobs: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)
    done: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)


class BrokenOffError(SessionError):
    """A call ended for a reason of the network's, or one that got lost on the way; the state may be half written."""


class Calls:
    """Makes calls for the threads that use one session of a cluster."""

    def __init__(self, lost: Future[NodeLostError]) -> None:
        self._lost = lost
        self._all: list[_Line] = []
        self._idle: list[_Line] = []

    def __call__(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """What `call(*arguments)` returns; a NodeLostError says who was lost while doing what."""
        self._require_all(doing)
        job, line = _Job(call, arguments), self._take()
        try:
            line.jobs.put(job)
            # What comes first may be of an earlier call, whose wait Ctrl-C has ended.
            while (done := line.done.get()) is not job:
                if done is None:
                    self._require_all(doing)
        finally:
            self._idle.append(line)
        error = job.error
        if isinstance(error, _NETWORK):
            try:
                with defer_interrupt():
                    lost = self._lost.result(_EXPLAINED_WITHIN)
            except NotInTime:
                raise BrokenOffError(f"{doing} was broken off, and no node is lost: {error}") from error
            raise lost.during(doing) from None
        if error is not None:
            raise error
        return job.result

    def close(self) -> None:
        """Let the threads end that are not stuck in a call."""
        for line in self._all:
            line.jobs.put(None)

    def _require_all(self, doing: str) -> None:
        with defer_interrupt():
            if self._lost.done():
                raise self._lost.result().during(doing)

    def _take(self) -> _Line:
        """A line that nobody waits on."""
        with defer_interrupt():
            with contextlib.suppress(IndexError):
                return self._idle.pop()
            line = _Line()
            self._lost.add_done_callback(lambda _: line.done.put(None))
            threading.Thread(target=_work, args=(line,), daemon=True, name="autodist-calls").start()
            self._all.append(line)
            return line


def _work(line: _Line) -> None:
    while job := line.jobs.get():
        job.do()
        line.done.put(job)
        del job
