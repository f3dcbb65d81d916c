"""What must not be left by a cluster that has ended or was never complete: on the hosts, or in this process."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.over_hosts import nothing_left


def running(network) -> dict[str, list]:
    """What there is: programs and listening ports of the hosts; threads, children and open files of this process."""
    tasks = os.listdir("/proc/self/task")
    return {
        "hosts": nothing_left(network),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": sorted(child for task in tasks for child in _children_of(task)),
        "files": sorted(_open_files()),
    }


def assert_nothing_came(before: dict[str, list], network, seconds: float = 5) -> None:
    """What was not there before is gone now, or at most so many seconds later."""
    end = time.monotonic() + seconds
    while running(network) != before and time.monotonic() < end:
        time.sleep(0.02)
    assert running(network) == before


def _children_of(task: str) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/self/task/{task}/children").read_text().split()]
    except OSError:
        return []


def _open_files() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        # The one that read this list is no more.
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{name}")
