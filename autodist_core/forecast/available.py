"""What a memory has for a training: that of this machine, and that of each of its GPUs.

In: the name of a memory. Out: bytes, or None where nobody can tell, as on another machine.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from autodist_core.cluster.on_node.machine import machine_resources
from autodist_core.resource_spec import DeviceSpec

_GROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def available(memory: str, here: str, held: int = 0) -> int | None:
    """The bytes that a memory has; `here` is this machine's address.

    `held` are the bytes that the model's variables take in this process already.

    >>> free = available("localhost", "localhost")
    >>> free > 0, available("10.0.0.2", "localhost") is None
    (True, True)
    """
    address, _, device = memory.partition(":GPU:")
    if address != here:
        return None
    if device:
        cards = _cards()
        index = DeviceSpec.parse(memory).index
        return cards[index] if index < len(cards) else None
    return min([machine_resources()["memory_free"], *_in_groups(Path("/sys/fs/cgroup"))]) + held


def _in_groups(folder: Path) -> list[int]:
    """What the limits of this process's control group leave, such as those of a container.

    >>> _in_groups(Path("/nowhere"))
    []
    """
    found = []
    for limit, used in _GROUPS:
        try:
            left = int((folder / limit).read_text("ascii")) - int((folder / used).read_text("ascii"))
        except (OSError, ValueError):  # no such group, or the limit "max"
            continue
        found.append(left)
    return found


@cache
def _cards() -> tuple[int, ...]:
    """The memory of each card of this machine, of which the driver tells. TensorFlow has taken most of what is free."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()
        return tuple(int(line) << 20 for line in lines)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
