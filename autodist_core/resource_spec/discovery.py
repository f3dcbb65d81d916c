"""The machines as the environment describes them: this machine's GPUs, and the cluster of a scheduler.

In: the driver's device files, ``TF_CONFIG``, or a cluster resolver's description. Out: indices of GPUs, and the content
of a YAML file for ``grammar``.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodist_core.errors import ResourceSpecError
from autodist_core.resource_spec.values import parse_address

# The jobs whose tasks compute; the first task of the first of these jobs is the chief. Evaluators take no part.
_COMPUTING = ("chief", "master", "worker")


def local_gpus(devices: Path = Path("/dev")) -> tuple[int, ...]:
    """The indices of the GPUs that TensorFlow would see on this machine, found without TensorFlow.

    It counts the driver's device files, or the lines of ``nvidia-smi -L`` where there are no such files, as in some
    containers. ``CUDA_VISIBLE_DEVICES`` hides GPUs; the visible ones are numbered from 0.
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
    """How many of ``count`` GPUs are visible with this mask: CUDA stops at the first entry that it cannot use.

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


@dataclass(frozen=True)
class Task:
    """One process of a scheduler's cluster: its job, its number in the job, and the address of its host.

    >>> cluster_tasks({"worker": ["10.0.0.1:8888"]}, "TF_CONFIG")[0]
    Task(job='worker', index=0, host='10.0.0.1', port=8888)
    """

    job: str
    index: int
    host: str
    port: int | None


def tf_config_content(text: str | None) -> tuple[Mapping[str, Any], tuple[str, int] | None]:
    """The ``cluster`` of a ``TF_CONFIG``, and the task that it names as this process's own.

    ``text`` is the content of the variable; without it, the environment is read.

    >>> tf_config_content('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}')
    ({'worker': ['a:1']}, ('worker', 0))
    """
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
    return cluster, own_task(content.get("task"))


def own_task(task: Any) -> tuple[str, int] | None:
    """The job and the number that the ``task`` of a ``TF_CONFIG`` has; ``None`` if it lacks one of them.

    >>> own_task({"type": "worker", "index": "1"}), own_task(None)
    (('worker', 1), None)
    """
    try:
        return str(task["type"]), int(task["index"])
    except (TypeError, KeyError, ValueError):
        return None


def cluster_tasks(cluster: Mapping[str, Any], source: str) -> list[Task]:
    """The tasks that take part in training: first the chief's, then the others that compute, then parameter servers.

    >>> [task.job for task in cluster_tasks({"ps": ["c:1"], "worker": ["b:1"], "chief": ["a:1"]}, "TF_CONFIG")]
    ['chief', 'worker', 'ps']
    """
    found = list(_tasks(cluster, _COMPUTING, source))
    if not found:
        raise ResourceSpecError(
            f"{source}: the cluster has no 'chief' and no 'worker'. Received the jobs: {', '.join(cluster)}."
        )
    return [*found, *_tasks(cluster, ("ps",), source)]


def find_task(tasks: Sequence[Task], own: tuple[str, int] | None, source: str) -> Task:
    """The task that this process is; the chief's task if the cluster's description does not say.

    >>> find_task([Task("worker", 0, "a", 1), Task("worker", 1, "b", 1)], ("worker", 1), "TF_CONFIG").host
    'b'
    """
    if own is None:
        return tasks[0]
    found = next((task for task in tasks if (task.job, task.index) == own), None)
    if found is None:
        raise ResourceSpecError(
            f"{source}: this process is task {own[1]} of job '{own[0]}', which takes no part in training. "
            f"Tasks that do: {', '.join(f'{task.job} {task.index}' for task in tasks)}."
        )
    return found


def cluster_content(tasks: Iterable[Task], gpus: int) -> dict[str, Any]:
    """The content of a YAML file for the tasks of a cluster. The first task is the chief's.

    All tasks on one host are one node, since a node is a machine. Only hosts that compute have GPUs.

    >>> tasks = cluster_tasks({"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "TF_CONFIG")
    >>> cluster_content(tasks, gpus=2)["nodes"][1:]
    [{'address': 'b', 'chief': False, 'gpus': 2}, {'address': 'c', 'chief': False, 'gpus': 0}]
    """
    tasks = list(tasks)
    computing = {task.host for task in tasks if task.job in _COMPUTING}
    return {
        "nodes": [
            {"address": host, "chief": host == tasks[0].host, "gpus": gpus if host in computing else 0}
            for host in dict.fromkeys(task.host for task in tasks)
        ]
    }


def _tasks(cluster: Mapping[str, Any], jobs: Iterable[str], source: str) -> Iterator[Task]:
    for job in jobs:
        tasks = cluster.get(job, [])
        # The tasks of a job may also be a mapping from the number of a task to its address.
        numbered = tasks.items() if isinstance(tasks, Mapping) else enumerate(tasks)
        for index, task in numbered:
            host, separator, port = str(task).rpartition(":")
            has_port = bool(separator) and port.isdecimal()
            try:
                address = parse_address(host if has_port else str(task))
            except ValueError as error:
                raise ResourceSpecError(f"{source}: job '{job}': '{task}' {error}. Expected 'host:port'.") from None
            yield Task(job, int(index), address, int(port) if has_port else None)
