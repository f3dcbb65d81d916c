"""Measure the steps of a call: in the user's process, and, if asked for, each operation on each device.

In: the moments at which a front fetches a batch and a session runs a step. Out: a `Call` for each time that the front's
loop went round. A session measures nothing until it is given `Timings`. Nothing here decides what the times mean:
`autodist_core/reports` does.

>>> timings = Timings()
>>> timings.mark()
>>> fetched = timings.fetching(lambda: "a batch")()
>>> timings.ran(Run(timings.now(), timings.now()))
>>> timings.mark()
>>> [(len(call.fetches), len(call.runs)) for call in timings.calls]
[(1, 1)]
"""

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorflow.core.protobuf import config_pb2

from autodist_core.kernel import Part, part_of
from autodist_core.step.grouping import by_key

STEP = re.compile(r"function[0-9]+_[0-9]+(?:_usual)?(?:_(?:kept|pipeline)[0-9]+)?(?:_whole[0-9]+)?/(.*)")
"""A node's name in a session: that of the graph (`graph_name`), and the name that the kernels gave.

TensorFlow measures nodes by their names only, so a mark on a node would not come back.
"""
_OP = re.compile(r" = (\w+)\(")
_TASK = re.compile(r"/task:([0-9]+)/device:(.*)$")


def graph_name(step: str, active: int, usual: bool, slot: str, whole: int) -> str:
    """Return the name of one of a step's graphs in a session, with which the names of its nodes begin.

    `active` replicas have examples, of the `usual` size of a batch or of any. `slot` names the data that machines have.
    Of so many variables as `whole`, gradients travel that are factors in smaller batches.

    >>> graph_name("function1", 2, False, "", 0), graph_name("function1", 2, True, "kept3", 4)
    ('function1_2', 'function1_2_usual_kept3_whole4')
    >>> names = [graph_name("function1", 2, *each) for each in ((False, "", 0), (True, "pipeline1", 4))]
    >>> [STEP.fullmatch(f"{name}/replica0/MatMul").group(1) for name in names]
    ['replica0/MatMul', 'replica0/MatMul']
    """
    parts = [step, f"{active}", "usual" if usual else "", slot, f"whole{whole}" if whole else ""]
    return "_".join(filter(None, parts))


@dataclass(frozen=True)
class Operation:
    """One operation of a step, on one device, with its times in seconds on the clock of its node.

    >>> Operation("10.0.0.1", "CPU:0", "replica0/MatMul", "MatMul", Part.COMPUTE, 2.0, 2.5).part.name
    'COMPUTE'
    """

    node: str
    """The address of the node."""
    device: str
    name: str
    op: str
    part: Part | None
    begin: float
    end: float


@dataclass(frozen=True)
class Run:
    """One step in the session, and its operations if they were asked for.

    >>> Run(2.0, 2.5).operations
    ()
    """

    begin: float
    end: float
    operations: tuple[Operation, ...] = ()
    fed: int = 0
    """The bytes of the batch."""


@dataclass(frozen=True)
class Call:
    """One round of a front's loop, from one mark to the next: the batches that it fetched, and the steps that it ran.

    >>> Call(0.0, 3.0, ((0.0, 1.0),), (Run(1.5, 2.5),)).begin
    0.0
    """

    begin: float
    end: float
    fetches: tuple[tuple[float, float], ...]
    runs: tuple[Run, ...]


class Timings:
    """What is measured of some rounds of a loop. The module's docstring has an example."""

    now = staticmethod(time.time)
    """The clock. TensorFlow's operations have their times from the same one."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.follows_operations = False
        """Whether sessions measure each operation, too. This makes steps slower."""
        self._begin: float | None = None
        self._fetches: list[tuple[float, float]] = []
        self._runs: list[Run] = []

    def mark(self) -> None:
        """Note that a round of the loop is over, and that the next one begins."""
        now = self.now()
        if self._begin is not None:
            self.calls.append(Call(self._begin, now, tuple(self._fetches), tuple(self._runs)))
        self._begin, self._fetches, self._runs = now, [], []

    def fetching(self, fetch: Callable[[], Any]) -> Callable[[], Any]:
        """A function that fetches a batch, and notes how long it took."""

        def timed() -> Any:
            begin = self.now()
            try:
                return fetch()
            finally:
                self._fetches.append((begin, self.now()))

        return timed

    def add(self, operations: Sequence[Operation]) -> None:
        """Give each run its operations: those that began after it, and before the next one.

        >>> timings = Timings()
        >>> for moment in (0.0, 5.0):
        ...     timings.mark()
        ...     timings.ran(Run(moment, moment + 1))
        >>> timings.mark()
        >>> timings.add([Operation("localhost", "CPU:0", "replica0/MatMul", "MatMul", Part.COMPUTE, 5.5, 5.6)])
        >>> [[len(run.operations) for run in call.runs] for call in timings.calls]
        [[0], [1]]
        """
        begins = [run.begin for call in self.calls for run in call.runs] + [run.begin for run in self._runs]
        before = ((bisect_right(begins, each.begin), each) for each in operations)
        of_run = by_key((begins[place - 1], each) for place, each in before if place)
        for index, call in enumerate(self.calls):
            runs = tuple(replace(run, operations=tuple(of_run.get(run.begin, ()))) for run in call.runs)
            self.calls[index] = replace(call, runs=runs)

    def ran(self, run: Run) -> None:
        """Note a step of a session."""
        self._runs.append(run)


def timed_step(
    plain: Callable[..., Any], followed: Callable[..., Any], feeds: Sequence[Any], outputs: Sequence[Any],
    targets: Sequence[Any], nodes: Sequence[str], timings: Timings, *arrays: Any,
) -> list[Any]:
    """Run a step of a session once, and measure it.

    `plain` runs it as always, with the values of `feeds` as arguments. `followed` is TensorFlow's `Session.run`, which
    takes what to fetch: `outputs`, and the `targets` without a value. `nodes` has the addresses of the nodes, the
    chief's first.

    >>> import numpy as np
    >>> timings = Timings()
    >>> timings.mark()
    >>> results = timed_step(lambda x: [x.sum()], print, ["x"], ["y"], [], ["localhost"], timings, np.ones(1))
    >>> timings.mark()
    >>> timings.calls[0].runs[0].fed
    8
    """
    fed = sum(int(array.nbytes) for array in arrays)
    if not timings.follows_operations:
        begin = timings.now()
        results: list[Any] = plain(*arrays)
        timings.ran(Run(begin, timings.now(), fed=fed))
        return results
    # A server returns no times of a step that is made from options, as `plain` is.
    options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE)
    metadata = config_pb2.RunMetadata()
    values = dict(zip(feeds, arrays, strict=True))
    begin = timings.now()
    results, _ = followed((outputs, targets), values, options=options, run_metadata=metadata)
    end = timings.now()
    timings.ran(Run(begin, end, operations_of(metadata.step_stats, nodes), fed))
    return results


def operations_of(step_stats: Any, nodes: Sequence[str]) -> tuple[Operation, ...]:
    """The operations of TensorFlow's measurement, in the order of their beginnings.

    >>> found = config_pb2.RunMetadata().step_stats
    >>> device = found.dev_stats.add(device="/job:run/replica:0/task:1/device:CPU:0")
    >>> name = "function1_2/replica1/MatMul"
    >>> node = device.node_stats.add(node_name=name, timeline_label=f"{name} = MatMul(a, b)", all_start_micros=1000000)
    >>> node.op_end_rel_micros = 500000
    >>> operations_of(found, ("10.0.0.1", "10.0.0.2"))[0].name
    'replica1/MatMul'
    """
    found = []
    for device in step_stats.dev_stats:
        place = _TASK.search(device.device)
        if place is None or int(place[1]) >= len(nodes):
            continue
        node, short = nodes[int(place[1])], place[2]
        for each in device.node_stats:
            name, op = STEP.search(each.node_name), _OP.search(each.timeline_label)
            known, kind = name[1] if name else each.node_name, op[1] if op else each.node_name
            begin = each.all_start_micros / 1e6
            found.append(Operation(
                node, short, known, kind, part_of(known if name else "", kind),
                begin + each.op_start_rel_micros / 1e6, begin + each.op_end_rel_micros / 1e6,
            ))
    return tuple(sorted(found, key=lambda each: each.begin))


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of these spans lasts.

    >>> busy([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
