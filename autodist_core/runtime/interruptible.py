"""Call into TensorFlow over a cluster. The wait ends with the call's result, the loss of a node, or Ctrl-C.

In: a function, its arguments, and the future of the cluster's first loss. Out: the function's result, or an error that
names the lost node. TensorFlow usually hangs after the loss of a node, and its calls cannot be interrupted. So another
thread makes each call, and the caller waits for the first of the three events. `DistributedSession.call` is the only
user.

A call that Ctrl-C has interrupted goes on in its thread. The next call waits for its end, since half of the state may
be written. That wait has a deadline, and another Ctrl-C ends it: a machine may wait for ever for a file of its data.

>>> calls = Calls(Future())
>>> calls("a step", pow, 2, 5)
32
>>> calls.close()
"""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import tensorflow as tf

from autodist_core.errors import NodeLostError, SessionError
from autodist_core.interrupts import defer_interrupt
from autodist_core.log import log

_EXPLAINED_WITHIN = 3.0
"""The seconds after a network error in which the loss of a node may be reported."""
_NETWORK = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
    tf.errors.UnknownError, tf.errors.DeadlineExceededError, tf.errors.NotFoundError,
)
_LONG = 30.0
"""The seconds after which a call is said to take long, if no call before took a tenth of them."""
_SAID_AFTER, _ENDS_WITHIN, _SLOWER = 5.0, 60.0, 3.0
"""For a call that Ctrl-C has interrupted: the seconds after which its wait is said, the seconds that it has to end, and
how many times as long it may take as the longest call before."""


@dataclass(eq=False)
class _Job:
    """A call, and its result or error."""

    doing: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    result: Any = None
    error: BaseException | None = None
    has_ended: bool = False

    def do(self) -> None:
        try:
            self.result = self.call(*self.arguments)
        except BaseException as error:
            self.error = error
        self.has_ended = True


@dataclass(eq=False)
class _Worker:
    """The queues of a thread that makes calls. None on `jobs` ends the thread; None on `done` reports a lost node."""

    jobs: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)
    done: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)
    last: _Job | None = None
    """The last call. If Ctrl-C has interrupted the wait for it, it may not have ended."""


class BrokenOffError(SessionError):
    """A network error ended a call and no node is lost, or the cluster was stopped. The state may be half written."""


class UnendedError(BrokenOffError):
    """A call that Ctrl-C has interrupted does not end, so the session cannot be used any more.

    >>> issubclass(UnendedError, SessionError)
    True
    """


class Calls:
    """Makes calls for the threads that use one session of a cluster. The module's docstring has an example."""

    def __init__(self, lost: Future[NodeLostError]) -> None:
        self._lost = lost
        self._all: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._longest = 0.0
        """The seconds that the longest call took."""
        self._unended: UnendedError | None = None

    def __call__(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return `call(*arguments)`. A NodeLostError names the lost node, and `doing` says during what."""
        self._require_all(doing)
        job, worker = _Job(doing, call, arguments), self._idle_worker()
        try:
            self._await_last(worker)
            begun = time.monotonic()
            with defer_interrupt():
                worker.last = job
                worker.jobs.put(job)
            limit = max(_LONG, 10 * self._longest)
            # The first item may belong to an earlier call, if Ctrl-C ended the wait for that call.
            while (done := _next(worker.done, limit)) is not job:
                if done is None:
                    self._require_all(doing)
                if (seconds := time.monotonic() - begun) > limit:
                    limit = 2 * seconds
                    log.warning(
                        "%s: %.0f s so far, and the longest call before took %.1f s. All machines answer. One of them "
                        "may wait for its data, or for a lock.", doing, seconds, self._longest,
                    )
            self._longest = max(self._longest, time.monotonic() - begun)
        finally:
            self._idle.append(worker)
        error = job.error
        if isinstance(error, _NETWORK):
            try:
                with defer_interrupt():
                    lost = self._lost.result(_EXPLAINED_WITHIN)
            except CancelledError:
                raise _stopped(doing) from error
            except TimeoutError:
                raise BrokenOffError(f"{doing} was broken off, and no node is lost: {error}") from error
            raise lost.during(doing) from None
        if error is not None:
            raise error
        return job.result

    def close(self) -> None:
        """End the threads. A thread that is stuck in a call ends after that call."""
        for worker in self._all:
            worker.jobs.put(None)

    def _await_last(self, worker: _Worker) -> None:
        """Wait for the end of a call that Ctrl-C has interrupted; raise an UnendedError if it does not end."""
        job, said = worker.last, False
        begun, limit = time.monotonic(), max(_ENDS_WITHIN, _SLOWER * self._longest)
        while job is not None and not job.has_ended:
            waited = time.monotonic() - begun
            if waited > limit:
                self._leave(job, f"within {limit:.0f} s after Ctrl-C")
            if waited > _SAID_AFTER and not said:
                said = True
                log.warning(
                    "waiting for the end of %s, which Ctrl-C has interrupted (%.0f s of %.0f). Another Ctrl-C ends the "
                    "wait: the model then gets the last safe state.", job.doing, waited, limit,
                )
            try:
                if _next(worker.done, _SAID_AFTER) is None:
                    self._require_all(job.doing)
            except KeyboardInterrupt:
                if said:
                    self._leave(job, "before the second Ctrl-C")
                raise

    def _leave(self, job: _Job, when: str) -> NoReturn:
        self._unended = UnendedError(
            f"{job.doing} did not end {when}, so this session is left. A machine may wait for a file of its data, or "
            "for a lock."
        )
        raise self._unended from None

    def _require_all(self, doing: str) -> None:
        with defer_interrupt():
            if self._unended is not None:
                raise self._unended
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


def _next(done: SimpleQueue[_Job | None], seconds: float) -> _Job | None:
    """The next item of a queue; None if there is none in time."""
    with contextlib.suppress(Empty):
        return done.get(timeout=seconds)
    return None


def _stopped(doing: str) -> BrokenOffError:
    return BrokenOffError(f"{doing} was broken off: the cluster of the session has been stopped.")


def _work(worker: _Worker) -> None:
    while job := worker.jobs.get():
        job.do()
        worker.done.put(job)
        del job
