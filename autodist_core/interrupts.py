"""Ctrl-C: when it may interrupt the main thread, and when it has to wait.

Python raises KeyboardInterrupt between any two instructions of the main thread. That can be inside Python's own
library, at a place where a lock was just taken and is then never released. Therefore, while a training runs, Ctrl-C is
deferred wherever the main thread shares locks with other threads. Long waits are made where Ctrl-C is not deferred.
Python also drops a KeyboardInterrupt that is raised in a `__del__` method or in a callback of its garbage collector.
Such a Ctrl-C is deferred too.

Every stage may use this module. `ignore_repeated_interrupts` stands around a whole training, `defer_interrupt` around
short sections of it, and `wait_for` is the wait that Ctrl-C ends safely.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from types import CodeType
from typing import Any, ClassVar, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

REPEAT_SECONDS = 2.0
"""A Ctrl-C within this time after another one counts as the same Ctrl-C. A later one counts as a new Ctrl-C."""


class _Deferred:
    """What is known of Ctrl-C: the open `defer_interrupt` sections of the main thread, and a Ctrl-C that waits."""

    depth = 0
    waiting: Callable[[], Any] | None = None
    handler: Callable[[int, Any], None] | None = None
    """What the innermost `ignore_repeated_interrupts` block has set for Ctrl-C."""
    codes: ClassVar[set[CodeType]] = set()
    """The code of the functions that `never_interrupted` has marked."""

    @classmethod
    def raise_waiting(cls) -> None:
        """Call the handler of the Ctrl-C that waits, if there is one and no section is open."""
        if not cls.depth and cls.waiting is not None:
            waiting, cls.waiting = cls.waiting, None
            waiting()


def _raise(error: BaseException) -> None:
    raise error


@contextmanager
def ignore_repeated_interrupts() -> Iterator[None]:
    """Ignore a Ctrl-C that soon follows another one, so that the first one can bring the training state home.

    A KeyboardInterrupt that Python drops, and a Ctrl-C that a function marked by `never_interrupted` defers, are raised
    at the end of the next `defer_interrupt`, at the latest at the end of this block. A handler or an unraisable hook
    that is set inside the block stays.

    This does nothing in other threads than the main thread, in a program without a handler for Ctrl-C, and within
    another such block.

    >>> before = signal.signal(signal.SIGINT, lambda *_: print("Ctrl-C"))
    >>> with ignore_repeated_interrupts():
    ...     signal.raise_signal(signal.SIGINT)
    ...     signal.raise_signal(signal.SIGINT)
    Ctrl-C
    >>> _ = signal.signal(signal.SIGINT, before)
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or not callable(before) or before is _Deferred.handler:
        yield
        return
    last = -REPEAT_SECONDS

    def interrupted(number: int, frame: Any) -> None:
        nonlocal last
        if _Deferred.handler is not interrupted:  # the block has ended, and a handler that was set in it calls this one
            before(number, frame)
            return
        if time.monotonic() - last < REPEAT_SECONDS:
            return
        last = time.monotonic()
        if _Deferred.depth or getattr(frame, "f_code", None) in _Deferred.codes:
            _Deferred.waiting = lambda: before(number, frame)
        else:
            before(number, frame)

    report = sys.unraisablehook

    def dropped(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt) and _Deferred.handler is interrupted:
            # The handler has run, so it is not called again. The traceback would keep the object that is destroyed.
            _Deferred.waiting = partial(_raise, (unraisable.exc_value or unraisable.exc_type()).with_traceback(None))
        else:
            report(unraisable)

    outer, _Deferred.handler = _Deferred.handler, interrupted
    signal.signal(signal.SIGINT, interrupted)
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        if sys.unraisablehook is dropped:
            sys.unraisablehook = report
        if signal.getsignal(signal.SIGINT) is interrupted:
            signal.signal(signal.SIGINT, before)
        _Deferred.handler = outer
        _Deferred.raise_waiting()


class defer_interrupt:
    """Defer Ctrl-C to the end of a `with` block. Use it for blocks that end at once.

    It works within `ignore_repeated_interrupts`. It is a class, because a generator would have gaps in which Ctrl-C is
    not deferred.

    >>> before = signal.signal(signal.SIGINT, lambda *_: print("Ctrl-C"))
    >>> with ignore_repeated_interrupts(), defer_interrupt():
    ...     signal.raise_signal(signal.SIGINT)
    ...     print("the block goes on")
    the block goes on
    Ctrl-C
    >>> _ = signal.signal(signal.SIGINT, before)
    """

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _Deferred.depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            _Deferred.depth -= 1
            _Deferred.raise_waiting()


def never_interrupted(function: _Function) -> _Function:
    """Mark a function in whose own lines no Ctrl-C is raised. It waits for the end of the next `defer_interrupt`.

    This is for functions that are called by code in C which cannot deal with an exception. Ctrl-C may still be raised
    in the functions that the marked function calls. It works within `ignore_repeated_interrupts`.

    >>> @never_interrupted
    ... def asked_by_c():
    ...     signal.raise_signal(signal.SIGINT)
    ...     print("the function goes on")
    >>> before = signal.signal(signal.SIGINT, lambda *_: print("Ctrl-C"))
    >>> with ignore_repeated_interrupts():
    ...     asked_by_c()
    ...     with defer_interrupt():
    ...         pass
    the function goes on
    Ctrl-C
    >>> _ = signal.signal(signal.SIGINT, before)
    """
    _Deferred.codes.add(function.__code__)
    return function


def wait_for(future: Future[Any]) -> None:
    """Wait until a future is done. Only Ctrl-C ends the wait earlier.

    >>> future = Future()
    >>> future.set_result(3)
    >>> wait_for(future)
    """
    # A future's own wait takes a lock in Python code, so Ctrl-C could end it while it has the lock.
    done: SimpleQueue[Future[Any]] = SimpleQueue()
    with defer_interrupt():
        future.add_done_callback(done.put)
    done.get()
