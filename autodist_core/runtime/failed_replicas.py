"""Which replicas a failed step names: read from TensorFlow's message.

In: the message of the error, and a placement. Out: the numbers of the replicas whose operations failed. TensorFlow
names a node of the session's graph, or a node of a function that several machines call (`kernel/alike/`), and the task::

    {{node function1/replica3/table/Gather}}                                    replica 3
    {{function_node own_1f}}{{node local1/table/Gather}} ... task:2 ...         the second replica of machine 2
"""

from __future__ import annotations

import re

from autodist_core.kernel import Placement

_NODE = re.compile(r"\{\{node \w+/replica([0-9]+)/")
_SHARED = re.compile(r"\{\{function_node own_[0-9a-f]+\}\}\{\{node local([0-9]+)/")
_REMOTE = re.compile(r"from remote target /job:\w+/replica:0/task:([0-9]+) while calling")
_TASK = re.compile(r"From /job:\w+/replica:0/task:([0-9]+):")


def failed_replicas(message: str, placement: Placement) -> list[int]:
    """Return the replicas whose operations failed, by TensorFlow's message.

    >>> from autodist_core.kernel import Tasks, inference
    >>> names = [f"10.0.0.{host}:CPU:{index}" for host in (1, 2) for index in (0, 1)]
    >>> placement = inference(tuple(names), Tasks("run", ("10.0.0.1", "10.0.0.2")))
    >>> failed_replicas("{{node function1/replica3/table/Gather}}", placement)
    [3]
    >>> shared = "{{function_node own_1f}}{{node local0/table/Gather}}"
    >>> failed_replicas(f"From /job:run/replica:0/task:1:\\n{shared}", placement)
    [2]
    """
    found = [int(replica) for replica in _NODE.findall(message)]
    if not found:
        tasks = _REMOTE.findall(message) or _TASK.findall(message)
        failed = {(f"/task:{task}/", int(place)) for place in _SHARED.findall(message) for task in tasks}
        found = [
            replica.index for replica, place in zip(placement.replicas, placement.places, strict=True)
            if any(task in replica.device and place == other for task, other in failed)
        ]
    return list(dict.fromkeys(found))
