"""Where the time of a step goes: measured times, put into parts that add up to the step's time.

In: `Timings` of some steps. Out: a `TimeTable`, from which `time_text.py` makes the report.

In the user's process each moment belongs to one part, since one thread fetches, runs Keras's loop and waits for the
session. Within the session each moment of a node belongs to the first of these that holds: an operation of compute runs
there, one of the update runs, the node's own data pipeline is waited for, a transfer is under way, none of them. So the
parts of a node add up to the step's time.

Following the operations makes a step slower, mostly at its end, when the times are collected. So some steps are
measured without it, which give the time of a step and of a run in the session, and some with it, which say how long a
node computes, updates and waits. What is left of a run's time is TensorFlow's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeVar

from autodist_core.kernel import Part
from autodist_core.runtime.timings import Call, Run, busy

INPUT, PYTHON, COMPUTE, UPDATE, WIRE, STARTING, HOME = PARTS = (
    "input", "Python", "compute", "update", "wire", "TensorFlow", "bringing home",
)  # fmt: skip
"""The parts of a step's time, in the order of a step."""
_INSIDE = ((COMPUTE, Part.COMPUTE), (UPDATE, Part.UPDATE), (INPUT, Part.INPUT), (WIRE, Part.EXCHANGE))
T = TypeVar("T")


@dataclass(frozen=True)
class WireTime:
    """How long the busiest link needs for the bytes of a step, at the bandwidth that the resource spec states.

    >>> round(WireTime("10.0.0.2", 125_000_000, 10.0).seconds, 3)
    0.1
    """

    node: str
    bytes: float
    gbit: float
    """The bandwidth of the node in Gbit/s."""
    sparse: int = 0
    """The number of variables whose rows travel, too, and do not count."""
    factored: int = 0
    """The number of variables of which the factors of the gradient travel."""
    gathered: float = 0.0
    """The bytes among these of gathered weights."""

    @property
    def seconds(self) -> float:
        """The time of the bytes alone."""
        return self.bytes * 8 / (self.gbit * 1e9)


@dataclass(frozen=True)
class TimeTable:
    """The content of the report: seconds by part and node. The parts of each node add up to `step`.

    >>> parts = {name: dict.fromkeys(PARTS, 0.0) | {"compute": seconds} for name, seconds in [("a", 0.1), ("b", 0.2)]}
    >>> TimeTable(0.2, parts, steps=20, batch=64, replicas=2).busiest
    'b'
    """

    step: float
    parts: Mapping[str, Mapping[str, float]]
    """For each node, the seconds of each part."""
    steps: int
    """How many steps were measured."""
    batch: float
    """The number of examples in a step."""
    replicas: int
    source: str = ""
    """The kind of the data, such as "generator"."""
    wire: WireTime | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def busiest(self) -> str:
        """The node whose replicas compute and update longest."""
        return max(self.parts, key=lambda node: self.parts[node][COMPUTE] + self.parts[node][UPDATE])


def time_of_parts(calls: Sequence[Call], home: float, steps_of_call: int) -> tuple[float, dict[str, dict[str, float]]]:
    """The time of a step, and for each node the time of each part. Calls with operations say what happens in a run.

    >>> from autodist_core.runtime.timings import Operation
    >>> run = lambda *operations: Run(3.0, 5.0, operations)
    >>> followed = Operation("here", "CPU:0", "replica0/MatMul", "MatMul", Part.COMPUTE, 3.0, 4.0)
    >>> calls = [Call(0.0, 6.0, ((0.0, 2.5),), (run(),)), Call(6.0, 12.0, ((6.0, 8.5),), (run(followed),))]
    >>> step, parts = time_of_parts(calls, 1.0, 10)
    >>> step, parts["here"]
    (6.1, {'input': 2.5, 'Python': 1.5, 'compute': 1.0, 'update': 0.0, 'wire': 0.0, 'TensorFlow': 1.0, ...: 0.1})
    """
    plain = [call for call in calls if call.runs and not any(run.operations for run in call.runs)]
    usual = middle(plain, lambda call: (call.end - call.begin) / len(call.runs))
    count = sum(len(call.runs) for call in usual)
    period = sum(call.end - call.begin for call in usual) / count
    fetching = sum(end - begin for call in usual for begin, end in call.fetches) / count
    running = sum(run.end - run.begin for call in usual for run in call.runs) / count
    followed = [run for call in calls for run in call.runs if run.operations]
    found = [divided(run) for run in middle(followed, lambda run: run.end - run.begin)]
    parts = {}
    for node in dict.fromkeys(node for each in found for node in each):
        inside = {name: sum(each.get(node, {}).get(name, 0.0) for each in found) / len(found) for name, _ in _INSIDE}
        # The followed steps may have been slower than the others.
        scale = min(1.0, running / max(sum(inside.values()), 1e-9))
        inside = {name: seconds * scale for name, seconds in inside.items()}
        whole = inside | {
            INPUT: fetching + inside[INPUT], HOME: home / steps_of_call,
            # Rounding may make the differences negative.
            PYTHON: max(0.0, period - fetching - running), STARTING: max(0.0, running - sum(inside.values())),
        }
        parts[node] = {name: whole[name] for name in PARTS}
    return period + home / steps_of_call, parts


def middle(values: Sequence[T], size: object) -> list[T]:
    """Those of the values that are neither among the smallest quarter nor among the largest.

    >>> middle([5, 1, 100, 4, 3], lambda value: value)
    [3, 4, 5]
    """
    ordered = sorted(values, key=size)  # type: ignore[call-overload]
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]


def divided(run: Run) -> dict[str, dict[str, float]]:
    """For each node, the seconds of a run in which it computes, only updates, and only waits: for its data, or others.

    Nodes have clocks of their own, so only durations count.

    >>> from autodist_core.runtime.timings import Operation
    >>> at = lambda part, begin, end: Operation("here", "CPU:0", "", "", part, begin, end)
    >>> operations = at(Part.COMPUTE, 0, 4), at(Part.COMPUTE, 3, 5), at(Part.EXCHANGE, 4, 8), at(Part.UPDATE, 7, 9)
    >>> divided(Run(0.0, 10.0, (*operations, at(Part.INPUT, 4, 6))))
    {'here': {'compute': 5.0, 'update': 2.0, 'input': 1.0, 'wire': 1.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for node in dict.fromkeys(each.node for each in run.operations):
        here = [each for each in run.operations if each.node == node]
        spans = [[(each.begin, each.end) for each in here if each.part is part] for _, part in _INSIDE]
        until = [0.0, *(busy(together) for together in accumulate(spans))]
        more = (after - before for before, after in pairwise(until))
        found[node] = {name: seconds for (name, _), seconds in zip(_INSIDE, more, strict=True)}
    return found
