"""Ctrl-C, pressed in a hurry: once is enough, and what ends after it is not to be cut short."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HURRY_SECONDS = 2.0
"""A Ctrl-C that follows another one within this time is the same; a later one is meant for what is going on then."""


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
        if time.monotonic() - last >= HURRY_SECONDS:
            last = time.monotonic()
            before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
