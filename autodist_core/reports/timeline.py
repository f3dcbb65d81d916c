"""A timeline of some steps on all nodes, as Perfetto and Chrome's tracing open it.

In: `Timings` whose operations were followed. Out: a dictionary in the Trace Event Format. The user's program is one
process of the timeline, with its input, its session and the rest. Each device of each node is another process, whose
rows have the operations.

Each node has a clock of its own. A node's operations of a step lie within that step's run in the session, on the
chief's clock. So each step bounds the difference of the two clocks from both sides, and the middle of the bounds of all
steps is taken.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from autodist_core.runtime.timings import Call, Operation, Run
from autodist_core.step.grouping import grouped

_PROGRAM = 1000
"""The number of the process that is the user's program; devices have the next ones.

Rows have low numbers. Perfetto takes a row that has the number of its process for a main thread, and puts it first.
"""


def timeline(calls: Sequence[Call], chief: str) -> dict[str, Any]:
    """The timeline of some rounds of a loop. `chief` is the address of the node where the program runs.

    >>> from autodist_core.kernel import Part
    >>> there = Operation("b", "CPU:0", "replica1/MatMul", "MatMul", Part.COMPUTE, 102.5, 103.5)
    >>> found = timeline([Call(0.0, 5.0, ((0.0, 1.0),), (Run(2.0, 4.0, (there,)),))], "a")
    >>> [(event["name"], event["ts"], event["dur"]) for event in found["traceEvents"] if event["ph"] == "X"]
    [('round 1', 0.0, 5000000.0), ('input', 0.0, 1000000.0), ('session', 2000000.0, 2000000.0), ('MatMul', ...)]
    >>> found["otherData"]
    {'clock of b': 'moved by -100000.000 ms, at most 500.000 ms wrong'}
    """
    runs = [run for call in calls for run in call.runs]
    nodes = list(dict.fromkeys(each.node for run in runs for each in run.operations))
    bounds = {node: clock_difference(runs, node) for node in nodes if node != chief}
    moved = {node: (least + most) / 2 for node, (least, most) in bounds.items()}
    begin = min((call.begin for call in calls), default=0.0)
    return {
        "traceEvents": [*_of_program(calls, begin), *_of_devices(runs, moved, begin)],
        "displayTimeUnit": "ms",
        "otherData": {
            f"clock of {node}": (
                f"moved by {moved[node] * 1e3:.3f} ms, at most {abs(most - least) / 2 * 1e3:.3f} ms wrong"
            )
            for node, (least, most) in bounds.items()
        },
    }


def clock_difference(runs: Sequence[Run], node: str) -> tuple[float, float]:
    """The least and the most seconds that lead from a node's clock to the chief's.

    >>> from autodist_core.kernel import Part
    >>> there = lambda begin, end: (Operation("b", "CPU:0", "", "", Part.COMPUTE, begin, end),)
    >>> clock_difference([Run(2.0, 4.0, there(102.5, 103.5)), Run(4.0, 6.0, there(104.25, 105.0))], "b")
    (-100.25, -99.5)
    """
    least, most = float("-inf"), float("inf")
    for run in runs:
        here = [each for each in run.operations if each.node == node]
        if here:
            least = max(least, run.begin - min(each.begin for each in here))
            most = min(most, run.end - max(each.end for each in here))
    return least, most


def _of_program(calls: Sequence[Call], begin: float) -> Iterator[dict[str, Any]]:
    yield from _named("process", _PROGRAM, 0, "program")
    for row, name in enumerate(("rounds of the loop", "input", "session"), start=1):
        yield from _named("thread", _PROGRAM, row, name)
    for number, call in enumerate(calls, start=1):
        yield _event(f"round {number}", "program", _PROGRAM, 1, call.begin - begin, call.end - begin)
        for start, end in call.fetches:
            yield _event("input", "input", _PROGRAM, 2, start - begin, end - begin)
        for run in call.runs:
            yield _event("session", "session", _PROGRAM, 3, run.begin - begin, run.end - begin)


def _of_devices(runs: Sequence[Run], moved: dict[str, float], begin: float) -> Iterator[dict[str, Any]]:
    devices = grouped((each for run in runs for each in run.operations), lambda each: (each.node, each.device))
    for number, ((node, device), operations) in enumerate(sorted(devices.items()), start=_PROGRAM + 1):
        yield from _named("process", number, 0, f"{node} {device}")
        shift = moved.get(node, 0.0) - begin
        rows = list(rows_of(operations))
        for row in sorted({row for row, _ in rows}):
            yield from _named("thread", number, row, f"operations {row}")
        for row, each in rows:
            part = each.part.name.lower() if each.part else "other"
            yield {
                **_event(each.op, part, number, row, each.begin + shift, each.end + shift), "args": {"name": each.name}
            }


def rows_of(operations: Sequence[Operation]) -> Iterator[tuple[int, Operation]]:
    """Operations with the first row in which nothing else runs at their time.

    >>> at = lambda begin, end: Operation("a", "CPU:0", "", "", None, begin, end)
    >>> [row for row, _ in rows_of([at(0, 2), at(1, 3), at(2, 4)])]
    [1, 2, 1]
    """
    ends: list[float] = []
    for each in sorted(operations, key=lambda each: each.begin):
        row = next((row for row, end in enumerate(ends) if end <= each.begin), len(ends))
        ends[row:row + 1] = [each.end]
        yield row + 1, each


def _event(name: str, part: str, process: int, row: int, begin: float, end: float) -> dict[str, Any]:
    # Both ends are rounded, and not the duration: else an event could begin before the one in its row has ended, and
    # Perfetto would leave it out.
    ts = round(begin * 1e6, 3)
    times = {"ts": ts, "dur": round(round(end * 1e6, 3) - ts, 3)}
    return {"ph": "X", "name": name, "cat": part, "pid": process, "tid": row, **times}


def _named(what: str, process: int, row: int, name: str) -> Iterator[dict[str, Any]]:
    """The name of a process or of a row, and its place, which would else be that of its name in the alphabet."""
    place = {"ph": "M", "pid": process, "tid": row}
    yield {**place, "name": f"{what}_name", "args": {"name": name}}
    yield {**place, "name": f"{what}_sort_index", "args": {"sort_index": row or process}}
