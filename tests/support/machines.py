"""Machines that need not be there: to plan for them, or to build their graph, takes none."""

from typing import Any

from autodist_core import ResourceSpec


def machines(*devices: int, kind: str = "cpus", **settings: Any) -> ResourceSpec:
    """Machines with so many devices each; the settings are those of every node."""
    return ResourceSpec({
        "nodes": [
            {"address": f"10.0.0.{number}", "chief": number == 1, kind: list(range(count)), **settings}
            for number, count in enumerate(devices, 1)
        ]
    })
