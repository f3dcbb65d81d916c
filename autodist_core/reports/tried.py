"""Try on a batch whether a metric's notes are right: two parts of the batch may add up to what the whole batch gives.

In: a captured step, its notes on metrics, and a batch. Out: the notes; one that the batch refutes says so. The static
analysis does not know values, and so not that this metric is equal, if all weights are 1::

    tf.reduce_sum(values * weights / tf.reduce_mean(weights))    # "gives each example a value of the whole batch"
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import add
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.plan import INEXACT
from autodist_core.reports.reasons import Reason
from autodist_core.reports.rounding import difference
from autodist_core.runtime.local.functions import function_of
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.step.naming import data_inputs, node_of
from autodist_core.step.ports import has_effect

_ROUNDING = 64
"""How many times the rounding of its type a sum may differ."""
_ADDS = "AssignAddVariableOp"
_REFUTED = "; in the first batch this changes no number of the metric"

_Run = Callable[[slice], list[Any]]


def tried(
    item: GraphItem, notes: Sequence[str], variables: Mapping[str, Any], arrays: Sequence[Any], total: int
) -> tuple[str, ...]:
    """These notes on metrics; those that the batch refutes no longer say "not exact".

    `variables` has the step's variables by name. A metric is tried if it adds to its variables, as Keras's do.

    >>> tried(GraphItem(()), ["not exact: in metric 'lift', Mean (Mean) ..."], {}, [], 8)
    ("not exact: in metric 'lift', Mean (Mean) ...",)
    """
    step, said = StepIndex.of(item), []
    for note in notes:
        found = _sums(step, note) if isinstance(note, Reason) and _is_divisible(item, arrays, total) else {}
        # A part may have sizes that an operation refuses, though the replicas' parts have others.
        with suppress(tf.errors.OpError):
            if found and _adds_up(step, found, variables, arrays, total):
                note = note.removeprefix(f"{INEXACT}: ") + _REFUTED
        said.append(note)
    return tuple(said)


def _adds_up(
    step: StepIndex, found: Mapping[str, str | None], variables: Mapping[str, Any], arrays: Sequence[Any], total: int
) -> bool:
    """Whether two parts of the batch, of other sizes, add up to what the whole batch gives."""
    run, cut = _runner(step, list(found), variables, arrays, total), total // 3 or 1
    before = [0 if name is None else variables[name].numpy() for name in found.values()]
    whole, one, other = run(slice(0, total)), run(slice(0, cut)), run(slice(cut, total))
    return all(map(_is_rounding, map(add, whole, before), map(add, one, other)))


def _is_divisible(item: GraphItem, arrays: Sequence[Any], total: int) -> bool:
    return total > 1 and len(arrays) == len(item.inputs) and all(
        each.has_rows and not each.part and each.dtype == tf.as_dtype(array.dtype).name and array.shape[0] == total
        for each, array in zip(item.inputs, arrays, strict=True)
    )


def _sums(step: StepIndex, note: Reason) -> dict[str, str | None]:
    """The tensors that a note's metric adds to variables. A tensor to which the metric adds the variable itself, and
    then writes the sum, has that variable beside it. Nothing, if the metric does anything else.
    """
    writes = [
        (step.nodes[node], step.variables[touch.variable]) for node, touched in step.touches.items()
        for touch in touched if touch.writes and not note.nodes.isdisjoint(step.cone([node]))
    ]
    found = {node.input[1]: None if node.op == _ADDS else variable.name for node, variable in writes}
    adds = all(
        node.op in (_ADDS, "AssignVariableOp") and variable.kind == "metric" and variable.combined == "sum"
        for node, variable in writes
    )
    return found if adds and not any(map(partial(_has_effect, step), step.cone(map(node_of, found)))) else {}


def _has_effect(step: StepIndex, node: str) -> bool:
    """Whether a node does more than to read variables."""
    only_reads = node in step.touches and node not in step.writers
    return not only_reads and has_effect(step.nodes[node], step.functions.functions)


def _runner(
    step: StepIndex, wanted: Sequence[str], variables: Mapping[str, Any], arrays: Sequence[Any], total: int
) -> _Run:
    """A function that returns these tensors for a part of the batch. It writes nothing: no order of writes is kept."""
    item, editor = step.item, Editor(step.graph.library, step.graph.versions)
    for name in step.in_order(step.cone(map(node_of, wanted))):
        editor.copy(step.nodes[name], name, list(data_inputs(step.nodes[name])), step.nodes[name].device)
    handles = {each.handle: variables[each.name].handle for each in item.variables if each.handle}
    fed = [each.name for each in item.inputs] + [item.examples, item.total, item.replica]
    signature = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in arrays]
    signature += [tf.TensorSpec([], dtype) for dtype in (tf.float64, tf.float64, tf.int32)]
    run = function_of(
        editor.graph_def(), "tried", handles, wanted, [], signature, lambda given: dict(zip(fed, given, strict=True))
    )

    def on(part: slice) -> list[Any]:
        given = [tf.convert_to_tensor(each[part]) for each in arrays]
        examples = [tf.constant(each, tf.float64) for each in (part.stop - part.start, total)]
        return [each.numpy() for each in run(*given, *examples, tf.constant(0))]

    return on


def _is_rounding(whole: Any, other: Any) -> bool:
    rounding = np.finfo(whole.dtype).eps if np.issubdtype(whole.dtype, np.floating) else 0
    return difference(np.atleast_1d(whole), np.atleast_1d(other)) <= _ROUNDING * rounding
