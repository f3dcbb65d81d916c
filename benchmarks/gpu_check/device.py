"""The device that a part of the check runs on: a card, or without one the processor, as a whole or in two parts.

Set up a device before TensorFlow starts, and once in a process.
"""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from gpu_check.findings import NotRun

MIB = 1 << 20


@dataclass(frozen=True)
class Device:
    """What the check runs on: GPUs, or CPU devices in their place.

    >>> Device("GPU").spec(2)["nodes"]
    [{'address': 'localhost', 'cpus': 1, 'gpus': 2}]
    >>> Device("CPU", tiny=True).names(2)
    ['CPU:0', 'CPU:1']
    """

    kind: str
    tiny: bool = False
    """Whether sizes are the smallest that still run everything: for a run that only shows that the check works."""

    @property
    def is_gpu(self) -> bool:
        """Whether there is a card."""
        return self.kind == "GPU"

    def require_gpu(self, what: str = "") -> None:
        """Leave out what needs a card."""
        if not self.is_gpu:
            raise NotRun(f"needs a GPU{what}")

    def names(self, count: int) -> list[str]:
        """TensorFlow's names of so many devices."""
        return [f"{self.kind}:{index}" for index in range(count)]

    def spec(self, count: int) -> dict[str, Any]:
        """The resource spec of so many replicas in this process."""
        node = {"address": "localhost", "cpus": 1, "gpus": count} if self.is_gpu else {"address": "localhost"}
        return {"nodes": [node if self.is_gpu else node | {"cpus": count}]}

    def set_up(self, parts: int = 1, share: float = 0.8, exact: bool = False) -> None:
        """Divide the first card, or the processor, into parts that together have a share of its memory.

        With `exact`, products of float32 are not rounded to TF32.
        """
        import tensorflow as tf

        first = tf.config.list_physical_devices(self.kind)[0]
        if parts > 1:
            limit = int(share * card()["memory_mib"] / parts) if self.is_gpu else None
            configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
            tf.config.set_logical_device_configuration(first, [configuration] * parts)
        if exact:
            tf.config.experimental.enable_tensor_float_32_execution(False)


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process: what it leaves on the card does not count for the next one.

    >>> in_a_process(abs, -2)
    2
    """
    with get_context("spawn").Pool(1) as pool:  # its end kills the process
        return pool.apply(function, arguments)


def cards() -> list[dict[str, Any]]:
    """The cards of this machine, as their driver describes them; empty without a driver."""
    asked = ("name", "driver_version", "memory.total", "compute_cap")
    command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [_card(line) for line in said.splitlines() if line.strip()]


def _card(line: str) -> dict[str, Any]:
    """One card.

    >>> _card("NVIDIA H100 80GB HBM3, 580.95.05, 81559, 9.0")["memory_mib"]
    81559
    """
    name, driver, memory, capability = (each.strip() for each in line.split(","))
    return {"name": name, "driver": driver, "memory_mib": int(memory), "compute_capability": capability}


def card() -> Mapping[str, Any]:
    """The first card."""
    return cards()[0]


def processes_on_cards() -> list[int]:
    """The processes that the driver says use a card. In a container it may not see them."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    return [int(line) for line in said.split() if line.isdecimal()]
