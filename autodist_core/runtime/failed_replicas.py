"""Which replicas a failed step names: read from TensorFlow's message.

In: the message of the error, and a placement. Out: the replicas whose operations failed. All that is known of
a failed operation is its name: TensorFlow names a node of the session's graph, or a node of a function that several
machines or replicas call (`kernel/units/`), and the task::

    {{node function1/replica3/table/Gather}}                               replica 3
    {{function_node own_1f}}{{node local1/table/Gather}} ... task:2 ...    the second replica of machine 2
    {{function_node each_1f}}{{node local0/table/Gather}} ... task:2 ...   a replica of machine 2, not its first one
"""

import re
from collections.abc import Sequence

from autodist_core.kernel import Placement

UNCHANGED = "The step changed nothing: what was trained before it is kept."
"""How an error of a step ends, unless replicas may have changed something before."""
_NODE = re.compile(r"\{\{node \w+/replica([0-9]+)/")
_OF_MACHINE = re.compile(r"\{\{function_node own_[0-9a-f]+\}\}\{\{node local([0-9]+)/")
_OF_REPLICA = re.compile(r"\{\{function_node each_[0-9a-f]+\}\}\{\{node local0/")
_REMOTE = re.compile(r"from remote target /job:\w+/replica:0/task:([0-9]+) while calling")
_TASK = re.compile(r"From /job:\w+/replica:0/task:([0-9]+):")


def failed_replicas(message: str, placement: Placement) -> list[tuple[int, ...]]:
    """Return the replicas whose operations failed, by TensorFlow's message: of several in one tuple, one failed.

    >>> from autodist_core.kernel import Tasks, inference
    >>> names = [f"10.0.0.{host}:GPU:{index}" for host in (1, 2) for index in (0, 1, 2)]
    >>> placement = inference(tuple(names), Tasks("run", ("10.0.0.1", "10.0.0.2")))
    >>> failed_replicas("{{node function1/replica3/table/Gather}}", placement)
    [(3,)]
    >>> told = "From /job:run/replica:0/task:1:\\n"
    >>> failed_replicas(told + "{{function_node own_1f}}{{node local0/table/Gather}}", placement)
    [(3,)]
    >>> failed_replicas(told + "{{function_node each_1f}}{{node local0/table/Gather}}", placement)
    [(4, 5)]
    """
    found: list[tuple[int, ...]] = [(int(replica),) for replica in _NODE.findall(message)]
    if found:
        return list(dict.fromkeys(found))
    for task in dict.fromkeys(_REMOTE.findall(message) or _TASK.findall(message)):
        machine = [replica.index for replica in placement.replicas if f"/task:{task}/" in replica.device]
        found += [(machine[int(place)],) for place in dict.fromkeys(_OF_MACHINE.findall(message))]
        if _OF_REPLICA.search(message):
            found.append(tuple(machine[1:]))
    return found


def said(replicas: Sequence[int], placement: Placement) -> str:
    """Return the names of replicas, of which one failed.

    >>> from autodist_core.kernel import inference
    >>> said((0, 1), inference(("localhost:CPU:0", "localhost:CPU:1")))
    'one of localhost:CPU:0, localhost:CPU:1'
    """
    names = [placement.replicas[replica].name for replica in replicas]
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
