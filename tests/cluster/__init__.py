"""Reaching other machines: real servers in the hosts of the test network, and real reasons why they are not reached."""

import time


def until(condition, seconds=10):
    """Wait for ``condition()`` to be true and return what it gave."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not so within {seconds} s"
        time.sleep(0.01)
    return value
