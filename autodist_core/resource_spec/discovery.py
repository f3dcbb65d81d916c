"""What machines there are, asked of the surroundings: this machine's GPUs, and the cluster a scheduler describes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autodist_core.errors import ResourceSpecError
from autodist_core.resource_spec.values import parse_address

__all__ = ["cluster_content", "local_gpus", "tf_config_content"]

# The jobs whose tasks compute, in the order in which one of them is the chief. An evaluator is none of ours.
_COMPUTING = ("chief", "master", "worker")


def local_gpus(devices: Path = Path("/dev")) -> tuple[int, ...]:
    """The indices of the GPUs that TensorFlow would see on this machine, found without TensorFlow.

    The driver's device files are counted, or where there are none (some containers) what ``nvidia-smi -L`` lists.
    ``CUDA_VISIBLE_DEVICES`` hides some, and those left count from 0.
    """
    count = sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia[0-9]+", path.name))
    if not count:
        try:
            listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return ()
        count = len(re.findall(r"^GPU [0-9]+:", listed, re.MULTILINE))
    return tuple(range(_visible(count, os.environ.get("CUDA_VISIBLE_DEVICES"))))


def _visible(count: int, mask: str | None) -> int:
    """How many of ``count`` GPUs CUDA leaves visible: those listed, up to the first entry it cannot use.

    >>> _visible(4, None), _visible(4, "2,0"), _visible(4, "1,9,2"), _visible(4, "-1"), _visible(4, "GPU-8a,GPU-9b")
    (4, 2, 1, 0, 2)
    """
    if mask is None:
        return count
    seen: set[str] = set()
    for entry in (part.strip() for part in mask.split(",")):
        usable = int(entry) < count if entry.isdecimal() else entry.startswith(("GPU-", "MIG-"))
        if not usable or entry in seen:
            break
        seen.add(entry)
    return min(len(seen), count)


def tf_config_content(text: str | None) -> Mapping[str, Any]:
    """The ``cluster`` of a ``TF_CONFIG``; ``None`` reads the environment."""
    if text is None:
        text = os.environ.get("TF_CONFIG")
        if not text:
            raise ResourceSpecError(
                "TF_CONFIG is not set. The scheduler sets it; without one, give a YAML file or a dict."
            )
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ResourceSpecError(f"TF_CONFIG is not JSON: {error}. Correct what sets it.") from None
    cluster = content.get("cluster") if isinstance(content, dict) else None
    if not isinstance(cluster, dict):
        raise ResourceSpecError(
            f"TF_CONFIG must hold a 'cluster' that maps jobs to lists of addresses. Received: {text}"
        )
    return cluster


def cluster_content(cluster: Mapping[str, Any], gpus: int, source: str) -> dict[str, Any]:
    """The content of a YAML file for a cluster of TensorFlow's (``{"worker": ["host:port", ...], "ps": [...]}``).

    Tasks on one host are one node, since a node is a machine. The GPUs belong to the hosts that compute.

    >>> cluster_content({"worker": ["a:1", "b:1"], "ps": ["c:1"]}, gpus=2, source="TF_CONFIG")["nodes"][1:]
    [{'address': 'b', 'chief': False, 'gpus': 2}, {'address': 'c', 'chief': False, 'gpus': 0}]
    """
    computing = list(_hosts(cluster, _COMPUTING, source))
    if not computing:
        raise ResourceSpecError(
            f"{source}: the cluster has no 'chief' and no 'worker'. Received the jobs: {', '.join(cluster)}."
        )
    serving = [host for host in _hosts(cluster, ("ps",), source) if host not in computing]
    return {
        "nodes": [
            {"address": host, "chief": host == computing[0], "gpus": gpus if host in computing else 0}
            for host in dict.fromkeys([*computing, *serving])
        ]
    }


def _hosts(cluster: Mapping[str, Any], jobs: Iterable[str], source: str) -> Iterable[str]:
    for job in jobs:
        tasks = cluster.get(job, [])
        # A cluster spec may be sparse: a mapping from the number of a task to its address.
        for task in tasks.values() if isinstance(tasks, Mapping) else tasks:
            host, separator, port = str(task).rpartition(":")
            try:
                yield parse_address(host if separator and port.isdecimal() else str(task))
            except ValueError as error:
                raise ResourceSpecError(f"{source}: job '{job}': '{task}' {error}. Expected 'host:port'.") from None
