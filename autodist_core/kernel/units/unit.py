"""What is built a few times and then repeated: a machine with its replicas, or one replica of a machine.

In: a placement over several machines. Out: a `Unit` for each machine, or for each of its replicas but the first. Names
of nodes have the number of a replica or of a task in them, from which the names of the other units' nodes are made.
`own` makes of the number the place in the unit, and so names of two units can be compared::

    replica5/dense/MatMul            of the machine of the replicas 4 to 7    local1/dense/MatMul
    brought/job_run/task_1/rate      of the machine of task 1                 brought/job_run/task_here/rate
    replica5/dense/MatMul            of replica 5                             local0/dense/MatMul
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Placement

_NUMBERED = re.compile(r"(?<![A-Za-z0-9])(?:replica|task_)\d+(?=$|[/:])")
_LOCAL = re.compile(r"(?<![A-Za-z0-9])local(\d+)(?=$|[/:])")


@dataclass(frozen=True, eq=False)
class Unit:
    """A machine, or one of its replicas: the number of the task and of the first replica, and how many there are.

    >>> machine = Unit("/job:run/task:1/device:CPU:0", task=1, first=4, count=4)
    >>> machine.own("update/replica5/replica12/step:1"), machine.own("brought/task_1/rate")
    ('update/local1/replica12/step:1', 'brought/task_here/rate')
    >>> machine.moved("^update/replica5/step", Unit("/job:run/task:9/device:CPU:0", task=9, first=36, count=4))
    '^update/replica37/step'
    """

    device: str
    """The device of its first replica."""
    task: int
    first: int
    count: int
    is_machine: bool = True

    @property
    def host(self) -> str:
        """The CPU of the process in which it is."""
        return host_of(self.device)

    @property
    def replicas(self) -> range:
        """The numbers of its replicas."""
        return range(self.first, self.first + self.count)

    @property
    def label(self) -> str:
        """The beginning of the names of its calls.

        >>> Unit("/job:run/task:1/device:GPU:2", 1, 6, 1, is_machine=False).label
        'replica6'
        """
        return f"machine{self.task}" if self.is_machine else f"replica{self.first}"

    @property
    def words(self) -> list[str]:
        """What the names of its nodes have in them: its replicas, and its task if it is a machine.

        >>> Unit("/job:run/task:1/device:CPU:0", task=1, first=4, count=2).words
        ['replica4', 'replica5', 'task_1']
        """
        return [*(f"replica{number}" for number in self.replicas), *([f"task_{self.task}"] if self.is_machine else [])]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        numbers = "|".join(map(str, self.replicas))
        task = f"task_{self.task}" if self.is_machine else "(?!)"
        return re.compile(rf"(?<![A-Za-z0-9])(?:replica({numbers})|{task})(?=$|[/:])")

    def has(self, text: str) -> bool:
        """Whether a name has the number of one of its replicas, or of the task if it is a machine."""
        return not set(self.words).isdisjoint(words(text))

    def own(self, text: str) -> str:
        """Return a name with the place in the unit in place of a replica's number."""
        if not _may_have_numbers(text):
            return text
        return self._pattern.sub(lambda found: f"local{int(found[1]) - self.first}" if found[1] else "task_here", text)

    def moved(self, text: str, other: Unit) -> str:
        """Return the name that a node has in another unit."""
        if not _may_have_numbers(text):
            return text
        return self._pattern.sub(
            lambda found: f"replica{int(found[1]) - self.first + other.first}" if found[1] else f"task_{other.task}",
            text,
        )

    def moved_device(self, device: str, other: Unit) -> str:
        """Return the device of another unit in place of one of this unit.

        >>> machine = Unit("/job:run/task:1/device:GPU:0", 1, 4, 4)
        >>> other = Unit("/job:run/task:9/device:GPU:0", 9, 36, 4)
        >>> machine.moved_device("/job:run/task:1/device:GPU:3", other)
        '/job:run/task:9/device:GPU:3'
        """
        if not self.is_machine:
            return other.device if device == self.device else device
        return device.replace(f"/task:{self.task}/", f"/task:{other.task}/")


def words(name: str) -> list[str]:
    """Return the replicas and tasks that a name has in it.

    >>> words("update/replica5/task_1/replica"), words("my_replica5x/step")
    (['replica5', 'task_1'], [])
    """
    return _NUMBERED.findall(name) if _may_have_numbers(name) else []


def _may_have_numbers(text: str) -> bool:
    return "replica" in text or "task_" in text


def local(own: str, replica: str) -> tuple[int, str] | None:
    """Return the first place in a unit that a name has, and the name with a replica there; None if it has none.

    >>> local("local2/dropout/seed", "replica1")
    (2, 'replica1/dropout/seed')
    """
    found = _LOCAL.search(own)
    return None if found is None else (int(found[1]), _LOCAL.sub(replica, own, count=1))


def machines_of(placement: Placement) -> tuple[Unit, ...]:
    """Return the machines of a placement, in the order of the replicas.

    >>> from autodist_core.kernel.placement.devices import Tasks
    >>> from autodist_core.kernel.placement.placing import inference
    >>> names = ("10.0.0.1:CPU:0", "10.0.0.2:CPU:0", "10.0.0.2:CPU:1")
    >>> machines = machines_of(inference(names, Tasks("run", ("10.0.0.1", "10.0.0.2"))))
    >>> [(machine.task, machine.replicas) for machine in machines]
    [(0, range(0, 1)), (1, range(1, 3))]
    """
    groups = [list(group) for _, group in groupby(placement.replicas, lambda replica: replica.host)]
    return tuple(Unit(group[0].device, task, group[0].number, len(group)) for task, group in enumerate(groups))
