"""The CPUs and the memory of this machine, and how much of them is in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def machine_resources() -> dict[str, Any]:
    """The CPUs that this process may use, the load average of the last minute, and the memory in bytes.

    >>> found = machine_resources()
    >>> found["cpus"] >= 1 and 0 < found["memory_free"] < found["memory"]
    True
    """
    memory = dict(_lines(Path("/proc/meminfo").read_text(encoding="ascii")))
    return {
        "cpus": len(os.sched_getaffinity(0)), "busy": os.getloadavg()[0],
        "memory": memory["MemTotal"], "memory_free": memory["MemAvailable"],
    }


def _lines(text: str) -> list[tuple[str, int]]:
    """The names in /proc/meminfo with their values in bytes.

    >>> _lines("MemTotal:  2 kB")
    [('MemTotal', 2048)]
    """
    found = (line.split() for line in text.splitlines())
    return [(words[0].rstrip(":"), 1024 * int(words[1])) for words in found]
