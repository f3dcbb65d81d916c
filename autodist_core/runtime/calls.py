"""Calls into TensorFlow whose wait ends when they return, when a node is lost, or when somebody presses Ctrl-C.

TensorFlow mostly hangs when a node goes, and a call of its cannot be interrupted. So each thread that calls has
another one that does the calls, one after the other, and waits for whatever happens first.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as NotInTime
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

from autodist_core.errors import NodeLostError, SessionError

_EXPLAINED_WITHIN = 3.0
"""How long after an error of the network the word of who is lost may take."""
_NETWORK = (
    tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
    tf.errors.UnknownError, tf.errors.DeadlineExceededError, tf.errors.NotFoundError,
)

_NODE = re.compile(r"\{\{node \w+/replica([0-9]+)/")

_Job = tuple[Callable[..., Any], tuple[Any, ...], Future[Any]]


class BrokenOffError(SessionError):
    """A call ended for a reason of the network's, or one that got lost on the way; the state may be half written."""


class Calls:
    """Makes calls for the threads that use one session of a cluster."""

    def __init__(self, lost: Future[NodeLostError], replicas: Sequence[str]) -> None:
        self._lost = lost
        self._replicas = replicas
        self._lines = threading.local()
        self._all: list[SimpleQueue[_Job | None]] = []

    def __call__(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """What `call(*arguments)` returns; a NodeLostError says who was lost while doing what."""
        if self._lost.done():
            raise self._lost.result().during(doing)
        future: Future[Any] = Future()
        self._line().put((call, arguments, future))
        wait([future, self._lost], return_when=FIRST_COMPLETED)
        if not future.done():
            raise self._lost.result().during(doing)
        error = future.exception()
        if isinstance(error, _NETWORK):
            try:
                raise self._lost.result(_EXPLAINED_WITHIN).during(doing) from None
            except NotInTime:
                raise BrokenOffError(f"{doing} was broken off, and no node is lost: {error}") from error
        if isinstance(error, tf.errors.OpError):
            # The tasks that TensorFlow names passed the error on, as often as not; the node is the one that failed.
            for replica in dict.fromkeys(_NODE.findall(str(error))):
                error.add_note(f"This happened on {self._replicas[int(replica)]}, during {doing}.")
        return future.result()

    def close(self) -> None:
        """Let the threads end that are not stuck in a call."""
        for line in self._all:
            line.put(None)

    def _line(self) -> SimpleQueue[_Job | None]:
        if not hasattr(self._lines, "queue"):
            self._lines.queue = SimpleQueue()
            self._all.append(self._lines.queue)
            threading.Thread(target=_work, args=(self._lines.queue,), daemon=True, name="autodist-calls").start()
        queue: SimpleQueue[_Job | None] = self._lines.queue
        return queue


def _work(queue: SimpleQueue[_Job | None]) -> None:
    while job := queue.get():
        call, arguments, future = job
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)
        del job, call, arguments, future
