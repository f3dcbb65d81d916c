"""Measure a training step on one replica of this machine, for a strategy that is chosen by its predicted time.

In: a captured step, its variables and a batch. Out: `StepTimes`. The step runs on copies of the variables, so training
begins with the values that it would have anyway.
"""

import re
import time
from collections.abc import Mapping, Sequence
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
from autodist_core.runtime.timings import Run, Timings, busy
from autodist_core.seams.table import OP_DEF
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import AllReduce
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_core.training.entries import Entry

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
        one = ResourceSpec({"nodes": [{"address": "localhost", "gpus" if on_gpu else "cpus": [device.index]}]})
        rows = BatchSlicer.bounds(arrays, total, len(spec.replica_devices))[0][1]
        batch = BatchSlicer(item).rows(arrays, range(len(arrays)), 0, 0, rows)
        batch = [np.asarray(each) if isinstance(each, KeptRows) else each for each in batch]
        try:
            runs = _runs(item, one, {entry.spec.name: entry.read() for entry in entries}, batch, rows)
        except tf.errors.AlreadyExistsError:
            return None  # the user's program has started TensorFlow's profiler
    plain, followed = median(run.end - run.begin for run in runs[:-1]), runs[-1].operations
    computing = [each for each in followed if each.part is Part.COMPUTE]
    computed, both = (
        busy((each.begin, each.end) for each in followed if each.part in parts)
        for parts in ((Part.COMPUTE,), (Part.COMPUTE, Part.UPDATE))
    )
    # Following the operations makes a step slower. What is left of its time is TensorFlow's, and counts as compute.
    update = (both - computed) * min(1.0, plain / max(both, 1e-9))
    begin, end = (moment(getattr(each, name) for each in computing) for moment, name in ((min, "begin"), (max, "end")))
    ends = {each.name.removeprefix("replica0/"): (each.end - begin) / (end - begin) for each in computing}
    return StepTimes(rows, plain - update, update, ends)


def _runs(
    item: GraphItem, one: ResourceSpec, values: Mapping[str, np.ndarray], batch: Sequence[Any], total: int
) -> list[Run]:
    """Some steps of one replica. The operations of the last one are known."""
    strategy = StrategyCompiler(item, one).compile(AllReduce().build(item, one))
    session, timings = LocalSession(place(item, strategy)), Timings()
    try:
        step = session.add(item, total)
        session.load(values)
        step(batch, total)  # makes the graph
        session.measure(timings)
        began = time.perf_counter()
        while not timings.follows_operations:
            late = time.perf_counter() - began > _SECONDS
            timings.follows_operations = len(timings.calls) == _ROUNDS or (late and bool(timings.calls))
            timings.mark()
            step(batch, total)
        timings.mark()
        session.measure(None)
    finally:
        session.close()
    return [run for call in timings.calls for run in call.runs]


def _is_repeatable(item: GraphItem) -> bool:
    """Whether a step changes variables only: it prints nothing, and calls no Python."""
    graph, known = item.graph_def, OP_DEF.get()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    definitions = ((node.op, known(node.op)) for node in nodes)
    return not any(made is not None and made.is_stateful and not _OF_VARIABLES.search(op) for op, made in definitions)
