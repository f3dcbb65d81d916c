"""Ctrl-C: what may be cut short by it, and what may not.

Python raises KeyboardInterrupt between any two instructions of the main thread, also inside its own library, where a
lock may just have been taken that nobody gives back then. So while a training runs, Ctrl-C is held back wherever the
main thread shares locks with others, and what waits for long does so where it may be pressed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

HURRY_SECONDS = 2.0
"""A Ctrl-C that follows another one within this time is the same; a later one is meant for what is going on then."""


class _Held:
    """How often the main thread holds Ctrl-C back at the moment, and what is to be done about one that was pressed."""

    depth = 0
    pressed: Callable[[], Any] | None = None


@contextmanager
def once() -> Iterator[None]:
    """Take a Ctrl-C that follows another one at once for the same, so that the first can bring the state home.

    Other threads than the main one get none, and a program that does without has its way.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    last = -HURRY_SECONDS

    def interrupted(number: int, frame: Any) -> None:
        nonlocal last
        if time.monotonic() - last < HURRY_SECONDS:
            return
        last = time.monotonic()
        if _Held.depth:
            _Held.pressed = lambda: before(number, frame)
        else:
            before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class held:
    """Hold Ctrl-C back while this is open; one that was pressed is raised at its end. For what is over at once.

    A class, since a generator would leave gaps in which Ctrl-C is heard.

    >>> before = signal.signal(signal.SIGINT, lambda *_: print("Ctrl-C"))
    >>> with once(), held():
    ...     signal.raise_signal(signal.SIGINT)
    ...     print("goes on")
    goes on
    Ctrl-C
    >>> _ = signal.signal(signal.SIGINT, before)
    """

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _Held.depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            _Held.depth -= 1
            if not _Held.depth and _Held.pressed is not None:
                pressed, _Held.pressed = _Held.pressed, None
                pressed()


def wait_for(future: Future[Any]) -> None:
    """Wait until it is done. Ctrl-C ends the wait, and nothing else.

    >>> future = Future()
    >>> future.set_result(3)
    >>> wait_for(future)
    """
    # A future's own wait takes a lock in Python, and so may be cut short while it holds it.
    done: SimpleQueue[Future[Any]] = SimpleQueue()
    with held():
        future.add_done_callback(done.put)
    done.get()
