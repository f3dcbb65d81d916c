"""What a machine has to compute with, and how much of it others use: of the machine that asks itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def own_machine() -> dict[str, Any]:
    """CPUs that this process may use, how many are busy, and bytes of memory.

    >>> found = own_machine()
    >>> found["cpus"] >= 1 and 0 < found["memory_free"] < found["memory"]
    True
    """
    memory = dict(_lines(Path("/proc/meminfo").read_text(encoding="ascii")))
    return {
        "cpus": len(os.sched_getaffinity(0)), "busy": os.getloadavg()[0],
        "memory": memory["MemTotal"], "memory_free": memory["MemAvailable"],
    }


def _lines(text: str) -> list[tuple[str, int]]:
    """The lines of /proc/meminfo with their values in bytes.

    >>> _lines("MemTotal:  2 kB")
    [('MemTotal', 2048)]
    """
    found = (line.split() for line in text.splitlines())
    return [(words[0].rstrip(":"), 1024 * int(words[1])) for words in found]
