"""The CPUs and the memory of this machine, and how much of them is in use."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

_GROUPS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""The files of a control group with its limit and what is used, and the count of unused pages, by the controller."""


def machine_resources() -> dict[str, Any]:
    """The CPUs that this process may use, the load average of the last minute, and the memory in bytes.

    >>> found = machine_resources()
    >>> found["cpus"] >= 1 and 0 < found["memory_free"] < found["memory"]
    True
    """
    lines = map(str.split, Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    memory = {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines}  # it counts in kB
    return {
        "cpus": len(os.sched_getaffinity(0)), "busy": os.getloadavg()[0],
        "memory": memory["MemTotal"],
        "memory_free": min([memory["MemAvailable"], *in_groups(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))]),
    }


def in_groups(folder: Path, own: Path) -> list[int]:
    """What the limits of a process's control groups leave, such as those of a container or of a SLURM job.

    Pages of files that nobody has used lately count as free. In a container, the group of `own` may have another path,
    and some kernels have neither that file nor the counts of pages.

    >>> in_groups(Path("/nowhere"), Path("/proc/self/cgroup"))
    []
    """
    found = []
    lines = own.read_text("utf-8", "surrogateescape").split("\n") if own.is_file() else []
    for line in ["0::/", "0:memory:/", *filter(None, lines)]:
        _, controllers, path = line.split(":", 2)
        names = path.strip("/").split("/")
        for controller in _GROUPS.keys() & controllers.split(","):
            limit, used, pages = _GROUPS[controller]
            for group in (folder.joinpath(controller, *names[:depth]) for depth in range(len(names) + 1)):
                try:
                    left = int((group / limit).read_text("ascii")) - int((group / used).read_text("ascii"))
                except (OSError, ValueError):  # no such group, or the limit "max"
                    continue
                stat = group / "memory.stat"
                spare = re.findall(rf"^{pages} (\d+)$", stat.read_text("ascii") if stat.is_file() else "", re.MULTILINE)
                found.append(left + sum(map(int, spare)))
    return found


@cache
def cards() -> tuple[int, ...]:
    """The memory of each visible card, of which the driver tells. TensorFlow may have taken most of what is free.

    >>> all(size > 0 for size in cards())
    True
    """
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()
        sizes = [int(line) << 20 for line in lines]
        shown = range(len(sizes)) if visible is None else [int(index) for index in visible.split(",")]
        return tuple(sizes[index] for index in shown if index >= 0)
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return ()
