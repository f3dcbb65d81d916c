"""Measure a training step, for a strategy that is chosen by its time.

In: a captured step, its variables and a batch. Out: `StepTimes` of one replica of this machine, or the strategy that
was fastest. The step runs on copies of the variables, so training begins with the values that it would have anyway.
"""

import re
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.auto import StepTimes
from autodist_core.kernel import Part, place
from autodist_core.log import stage
from autodist_core.resource_spec import ResourceSpec
from autodist_core.runtime.batch_slices import BatchSlicer
from autodist_core.runtime.kept_arrays import KeptRows
from autodist_core.runtime.local.session import LocalSession
from autodist_core.runtime.protocol import Session
from autodist_core.runtime.timings import Run, Timings, busy
from autodist_core.seams.table import OP_DEF
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import AllReduce, Strategy
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_core.training.entries import Entry
from autodist_core.training.sessions import Sessions

_SECONDS, _ROUNDS = 1.0, 5
"""A round is begun if less time than this has gone by, and there were fewer rounds."""
_MOST_BYTES = 2 << 30
"""The most bytes of variables that are copied for this."""
_OF_VARIABLES = re.compile("Var|Resource|Random|Multinomial|Shuffle|Rng|Table|Call|^(If|While)$|^Placeholder")
"""Types of stateful operations that change nothing but the copies: no text is printed, and no Python is called."""


def times_of(
    item: GraphItem, entries: Sequence[Entry], arrays: Sequence[Any], total: int, spec: ResourceSpec
) -> StepTimes | None:
    """The times of a step on the first replica's part of a batch; None for a step that is not measured.

    Not measured are steps that do more than to change variables, those of large models, and those for GPUs that the
    agent on this machine will use.

    >>> from autodist_core.capture.example import example_step
    >>> item = example_step()
    >>> entries = [Entry(each, tf.Variable(tf.ones(each.shape, each.dtype))) for each in item.variables]
    >>> found = times_of(item, entries, [np.ones((5, 3), "float32")], 5, ResourceSpec.local(cpus=2))
    >>> found.examples, found.compute > 0, float(entries[0].read()[0, 0])
    (3, True, 1.0)
    """
    device = spec.replica_devices[0][1]
    on_gpu = device.kind == "GPU"
    size = sum(entry.spec.byte_size for entry in entries)
    if (on_gpu and len(spec.nodes) > 1) or size > _MOST_BYTES or not _is_repeatable(item):
        return None
    with stage("measuring a step of one replica", "measuring a step of one replica, for strategy='auto'"):
        devices = {"gpus": [device.index]} if on_gpu else {"cpus": 1}
        one = ResourceSpec({"nodes": [{"address": "localhost", **devices}]})
        rows = BatchSlicer.bounds(arrays, total, len(spec.replica_devices))[0][1]
        batch = BatchSlicer(item).rows(arrays, range(len(arrays)), 0, 0, rows)
        batch = [np.asarray(each) if isinstance(each, KeptRows) else each for each in batch]
        session = LocalSession(place(item, StrategyCompiler(item, one).compile(AllReduce().build(item, one))))
        runs = _runs(session, item, entries, batch, rows, follow=True)
    if not runs:
        return None
    plain, followed = median(run.end - run.begin for run in runs[:-1]), runs[-1].operations
    computing = [each for each in followed if each.part is Part.COMPUTE]
    computed, both = (
        busy((each.begin, each.end) for each in followed if each.part in parts)
        for parts in ((Part.COMPUTE,), (Part.COMPUTE, Part.UPDATE))
    )
    # Following the operations makes a step slower. What is left of its time is TensorFlow's, and counts as compute.
    update = (both - computed) * min(1.0, plain / max(both, 1e-9))
    begin = min((each.begin for each in computing), default=0.0)
    end = max((each.end for each in computing), default=1.0)
    ends = {each.name.removeprefix("replica0/"): (each.end - begin) / (end - begin) for each in computing}
    return StepTimes(rows, plain - update, update, ends)


def fastest(
    sessions: Sessions, item: GraphItem, entries: Sequence[Entry], arrays: Sequence[Any], total: int
) -> Strategy | None:
    """The fastest of the builder's candidates, each of which runs some steps; None if there is nothing to try.

    >>> from autodist_core.auto import Auto
    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.training.settings import Settings
    >>> item, sessions = example_step(), Sessions(Settings(ResourceSpec.local(cpus=2), Auto(trials=2)))
    >>> entries = [Entry(each, tf.Variable(tf.ones(each.shape, each.dtype))) for each in item.variables]
    >>> print(*fastest(sessions, item, entries, [np.ones((5, 3), "float32")], 5).notes[-1:])
    auto tried strategies on the first batch: ... ms, ... ms
    """
    spec = sessions.settings.resource_spec
    candidates = sessions.settings.strategy.candidates(item, spec)
    if not candidates or not _is_repeatable(item):
        return None
    sessions.start_machines()
    found: dict[str, tuple[float, Strategy]] = {}
    for name, strategy in candidates.items():
        with stage(f"trying {name}", f"trying {name}, for strategy='auto'"):
            compiled = StrategyCompiler(item, spec).compile(strategy)
            session = sessions.open(partial(sessions.placement, item, compiled))
            runs = _runs(session, item, entries, arrays, total)
        if runs:
            found[name] = median(run.end - run.begin for run in runs), strategy
    if not found:
        return None
    said = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, (seconds, _) in found.items())
    _, best = min(found.values(), key=lambda each: each[0])
    return best.noted(f"auto tried strategies on the first batch: {said}")


def _runs(
    session: Session, item: GraphItem, entries: Sequence[Entry], batch: Sequence[Any], total: int, follow: bool = False
) -> list[Run]:
    """Some steps of a session, which is closed then. With `follow`, the operations of the last one are known.

    No steps if one fails. Training then says so, or does without TensorFlow's profiler, which the program may use.
    """
    timings = Timings()
    try:
        step = session.add(item, total)
        session.load({entry.spec.name: entry.read() for entry in entries})
        step(batch, total)  # makes the graph
        session.measure(timings)
        began, last = time.perf_counter(), False
        while not last:
            late = time.perf_counter() - began > _SECONDS
            last = len(timings.calls) == _ROUNDS or (late and bool(timings.calls))
            timings.follows_operations = last and follow
            timings.mark()
            step(batch, total)
        timings.mark()
        session.measure(None)
    except (tf.errors.OpError, ValueError):
        return []
    finally:
        session.close()
    return [run for call in timings.calls for run in call.runs]


def _is_repeatable(item: GraphItem) -> bool:
    """Whether a step changes variables only: it prints nothing, and calls no Python."""
    graph, known = item.graph_def, OP_DEF.get()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    definitions = ((node.op, known(node.op)) for node in nodes)
    # TensorFlow takes some Python functions for ones without a state.
    effects = (op for op, made in definitions if "PyFunc" in op or (made is not None and made.is_stateful))
    return all(_OF_VARIABLES.search(op) for op in effects)
