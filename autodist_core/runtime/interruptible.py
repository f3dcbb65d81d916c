"""Call into TensorFlow over a cluster. The wait ends with the call's result, the loss of a node, or Ctrl-C.

In: a function, its arguments, and the future of the cluster's first loss. Out: the function's result, or an error that
names the lost node. TensorFlow usually hangs after the loss of a node, and its calls cannot be interrupted. So another
thread makes each call, and the caller waits for the first of the three events. `DistributedSession.call` is the only
user.

>>> calls = Calls(Future())
>>> calls("a step", pow, 2, 5)
32
>>> calls.close()
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

from autodist_core.errors import NodeLostError, SessionError
from autodist_core.interrupts import defer_interrupt

_EXPLAINED_WITHIN = 3.0
"""The seconds after a network error in which the loss of a node may be reported."""
_NETWORK = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
    tf.errors.UnknownError, tf.errors.DeadlineExceededError, tf.errors.NotFoundError,
)


@dataclass(eq=False)
class _Job:
    """A call, and its result or error."""

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
class _Worker:
    """The queues of a thread that makes calls. None on `jobs` ends the thread; None on `done` reports a lost node."""

    jobs: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)
    done: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)


class BrokenOffError(SessionError):
    """A network error ended a call and no node is lost, or the cluster was stopped. The state may be half written."""


class Calls:
    """Makes calls for the threads that use one session of a cluster. The module's docstring has an example."""

    def __init__(self, lost: Future[NodeLostError]) -> None:
        self._lost = lost
        self._all: list[_Worker] = []
        self._idle: list[_Worker] = []

    def __call__(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return `call(*arguments)`. A NodeLostError names the lost node, and `doing` says during what."""
        self._require_all(doing)
        job, worker = _Job(call, arguments), self._idle_worker()
        try:
            worker.jobs.put(job)
            # The first item may belong to an earlier call, if Ctrl-C ended the wait for that call.
            while (done := worker.done.get()) is not job:
                if done is None:
                    self._require_all(doing)
        finally:
            self._idle.append(worker)
        error = job.error
        if isinstance(error, _NETWORK):
            try:
                with defer_interrupt():
                    lost = self._lost.result(_EXPLAINED_WITHIN)
            except CancelledError:
                raise _stopped(doing) from error
            except NotInTime:
                raise BrokenOffError(f"{doing} was broken off, and no node is lost: {error}") from error
            raise lost.during(doing) from None
        if error is not None:
            raise error
        return job.result

    def close(self) -> None:
        """End the threads. A thread that is stuck in a call ends after that call."""
        for worker in self._all:
            worker.jobs.put(None)

    def _require_all(self, doing: str) -> None:
        with defer_interrupt():
            if self._lost.cancelled():
                raise _stopped(doing)
            if self._lost.done():
                raise self._lost.result().during(doing)

    def _idle_worker(self) -> _Worker:
        """An idle worker, or a new one."""
        with defer_interrupt():
            with contextlib.suppress(IndexError):
                return self._idle.pop()
            worker = _Worker()
            self._lost.add_done_callback(lambda _: worker.done.put(None))
            threading.Thread(target=_work, args=(worker,), daemon=True, name="autodist-calls").start()
            self._all.append(worker)
            return worker


def _stopped(doing: str) -> BrokenOffError:
    return BrokenOffError(f"{doing} was broken off: the cluster of the session has been stopped.")


def _work(worker: _Worker) -> None:
    while job := worker.jobs.get():
        job.do()
        worker.done.put(job)
        del job
