"""Distributed datasets that run on each machine, so that `run()` feeds only where the rows of its replicas are.

In: a dataset of global batches, and the machines. Out: a pipeline, if the machines can run it; and elements that know
which batch they are. `run()` is given such elements as they are, and finds out. Whatever was computed of them is fed,
and so is what a `tf.function` around `run()` hands over.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec
from autodist_core.runtime.data_pipelines import DataPipeline, DrawnBatch, DrawnRows, travelling
from autodist_core.runtime.kept_arrays import KEPT_VARIABLE, SMALL_GRAPH, kept_limit
from autodist_core.step.graph_item import format_bytes

_MARK = "_autodist_slice"
"""The attribute of a tensor that says which rows of which batch it is, and of which replica."""


def say_fed_to_function(spec: ResourceSpec, iterates: bool) -> None:
    """Say that the batches are fed which a traced function takes, of an iterator or in a loop of its own.

    >>> say_fed_to_function(ResourceSpec.local(cpus=2), iterates=True)
    """
    if not _several(spec):
        return
    if iterates:
        log.info("a distributed dataset: fed each step: the loop over it is in a tf.function")
    else:
        log.info("a distributed dataset: a tf.function takes batches of its iterator, and these are fed")


def _several(spec: ResourceSpec) -> bool:
    """Whether there is a replica on another machine than the chief."""
    return not {device.address for _, device in spec.replica_devices} <= {spec.chief.address}


def pipeline_of(dataset: Any, spec: ResourceSpec) -> tuple[DataPipeline | None, Any]:
    """The pipeline of a dataset, and the dataset through which this process goes. None if the batches are fed.

    >>> pipeline_of(tf.data.Dataset.range(4).batch(2), ResourceSpec.local(cpus=2))[0] is None
    True
    """
    if not _several(spec):
        return None, dataset
    try:
        pipeline, same = travelling(dataset, _fed)
    except ValueError as error:
        log.info("a distributed dataset: fed each step: %s", error)
        return None, dataset
    size, most = len(pipeline.graph), min(SMALL_GRAPH, kept_limit())
    if size > most:
        log.info(
            "a distributed dataset: fed each step: it has %s, and such ones travel up to %s (%s)", format_bytes(size),
            format_bytes(most), KEPT_VARIABLE,
        )
        return None, dataset
    # This process goes through it in any case: a loop may look at the elements.
    pipeline.foreseen = False
    log.info(
        "a distributed dataset: each machine runs its tf.data pipeline (%s, sent once) and takes its rows; this "
        "program runs it too", format_bytes(size),
    )
    return pipeline, same


def _fed(reason: str) -> None:
    log.warning("a distributed dataset: fed each step: %s", reason)


def mark(element: Any, drawn: DrawnBatch) -> None:
    """Let the slices of an element say which batch they are of. `drawn` has an example.

    >>> from autodist_core.runtime.data_pipelines import Pass
    >>> mark((), DrawnBatch(Pass(DataPipeline(b"", ()), b""), 3))
    """
    for number, each in enumerate(tf.nest.flatten(element)):
        rows = DrawnRows(drawn, number)
        for replica, value in enumerate(each.values):
            setattr(value, _MARK, (rows, replica))


def drawn(arrays: Sequence[Any], tensors: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The arrays of a call, which machines can make if all tensors are slices of one batch.

    >>> from autodist_core.loops.distribute.values import per_replica
    >>> from autodist_core.runtime.batch_slices import Each
    >>> from autodist_core.runtime.data_pipelines import Pass
    >>> slices = tf.constant([1]), tf.constant([2])
    >>> mark(per_replica(slices), DrawnBatch(Pass(DataPipeline(b"", ()), b""), 3))
    >>> (array,) = drawn([Each(slices, (1, 1))], [slices])
    >>> array.drawn.batch.position
    3
    """
    found = [_rows_of(values) for values in tensors]
    first = found[0] if found else None
    if first is None or len(found) != len(arrays):
        return tuple(arrays)
    if any(rows is None or rows.batch is not first.batch for rows in found):
        return tuple(arrays)
    return tuple(replace(array, drawn=rows) for array, rows in zip(arrays, found, strict=True))


def _rows_of(values: Sequence[Any]) -> DrawnRows | None:
    """The array of which these tensors are the slices, one for each replica."""
    slices = [getattr(value, _MARK, None) for value in values]
    rows = slices[0][0] if slices[0] is not None else None
    return rows if len(values) > 1 and slices == [(rows, at) for at in range(len(values))] else None
