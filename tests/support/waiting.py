"""How a test waits: until something is so, and not for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANGS = 60.0
"""Seconds after which something that takes a few at most is taken to hang."""


def until(condition: Callable[[], T], within: float = HANGS) -> T:
    """Wait for `condition()` to be true and return what it gave; fail when it is not `within` so many seconds.

    >>> until(lambda: "yes")
    'yes'
    """
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, f"not so within {within} s"
        time.sleep(0.005)
    return value


def comes_true(condition: Callable[[], object], within: float) -> bool:
    """Wait for `condition()` likewise, and say whether it became true, for a caller that tells what is wrong."""
    try:
        until(condition, within)
    except AssertionError:
        return False
    return True
