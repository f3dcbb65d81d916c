"""What must not be left by a cluster that has ended or was never complete: on the hosts, or in this process."""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import comes_true


def running(network) -> dict[str, list]:
    """What there is: programs and listening ports of the hosts; threads, children and open files of this process."""
    hosts = network.hosts[1:]
    return {
        "programs": [f"{host.name}: {words}" for host in hosts for _, words in host.processes() if "sshd" not in words],
        "ports": [f"{host.name}: {port}" for host in hosts for port in host.listening()],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": own_children(),
        "files": sorted(_open_files()),
    }


def assert_nothing_came(before: dict[str, list], network, seconds: float = 20) -> None:
    """What was not there before is gone now, or at most so many seconds later."""
    comes_true(lambda: not _more(running(network), before), seconds)
    assert _more(running(network), before) == {}


def _more(now: dict[str, list], before: dict[str, list]) -> dict[str, list]:
    """What there is more than before; what went away meanwhile, of another test perhaps, is no one's fault."""
    came = {kind: list((Counter(found) - Counter(before[kind])).elements()) for kind, found in now.items()}
    return {kind: found for kind, found in came.items() if found}


def own_children() -> list[int]:
    """The processes that this one has started and that still run, by id."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end between the two.
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


def _open_files() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        # The one that read this list is no more.
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{name}")
