"""The machines of a placement, and the names of their nodes.

In: a placement over several machines. Out: a `Machine` for each. Names of nodes have the number of a replica or of a
task in them. `own` makes of it the place on the machine, and so names of two machines can be compared::

    replica5/dense/MatMul            on the machine of the replicas 4 to 7    local1/dense/MatMul
    brought/job_run/task_1/rate      on the machine of task 1                 brought/job_run/task_here/rate
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from autodist_core.kernel.placement.placement import Placement

_LOCAL = re.compile(r"(?<![A-Za-z0-9])local(\d+)(?=$|[/:])")


@dataclass(frozen=True)
class Machine:
    """One machine: the number of its task, of its first replica, and how many replicas it has.

    >>> machine = Machine(task=1, first=4, count=4)
    >>> machine.own("update/replica5/replica12/step:1"), machine.own("brought/task_1/rate")
    ('update/local1/replica12/step:1', 'brought/task_here/rate')
    >>> machine.moved("^update/replica5/step", Machine(task=9, first=36, count=4))
    '^update/replica37/step'
    """

    task: int
    first: int
    count: int

    @property
    def replicas(self) -> range:
        """The numbers of its replicas."""
        return range(self.first, self.first + self.count)

    def has(self, text: str) -> bool:
        """Whether a name has the number of the machine's task, or of one of its replicas."""
        return _pattern(self).search(text) is not None

    def own(self, text: str) -> str:
        """Return a name with the place on the machine in place of a replica's number."""
        return _pattern(self).sub(lambda found: f"local{int(found[1]) - self.first}" if found[1] else "task_here", text)

    def moved(self, text: str, other: Machine) -> str:
        """Return the name that a node has on another machine."""
        return _pattern(self).sub(
            lambda found: f"replica{int(found[1]) - self.first + other.first}" if found[1] else f"task_{other.task}",
            text,
        )

    def device(self, device: str, other: Machine) -> str:
        """Return the device on another machine in place of one of this machine.

        >>> Machine(1, 4, 4).device("/job:run/replica:0/task:1/device:GPU:3", Machine(9, 36, 4))
        '/job:run/replica:0/task:9/device:GPU:3'
        """
        return device.replace(f"/task:{self.task}/", f"/task:{other.task}/")


@cache
def _pattern(machine: Machine) -> re.Pattern[str]:
    numbers = "|".join(map(str, machine.replicas))
    return re.compile(rf"(?<![A-Za-z0-9])(?:replica({numbers})|task_{machine.task})(?=$|[/:])")


def local(own: str, replica: str) -> tuple[int, str] | None:
    """Return the first place on a machine that a name has, and the name with a replica there; None if it has none.

    >>> local("local2/dropout/seed", "replica1")
    (2, 'replica1/dropout/seed')
    """
    found = _LOCAL.search(own)
    return None if found is None else (int(found[1]), _LOCAL.sub(replica, own, count=1))


def machines_of(placement: Placement) -> tuple[Machine, ...]:
    """Return the machines of a placement, in the order of the replicas.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placement import inference
    >>> names = ("10.0.0.1:CPU:0", "10.0.0.2:CPU:0", "10.0.0.2:CPU:1")
    >>> machines_of(inference(names, Tasks("run", ("10.0.0.1", "10.0.0.2"))))
    (Machine(task=0, first=0, count=1), Machine(task=1, first=1, count=2))
    """
    hosts = [(host, [replica.index for replica in group])
             for host, group in groupby(placement.replicas, lambda replica: replica.host)]
    return tuple(Machine(task, indices[0], len(indices)) for task, (_, indices) in enumerate(hosts))
