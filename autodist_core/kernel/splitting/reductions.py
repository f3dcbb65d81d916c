"""Combine the shards' results of a reduction over the split axis into the result for the whole variable.

In: a captured reduction (a sum, a mean, a maximum ...) and the names of its copies on the shards. Out: nodes that
combine them, under the captured reduction's name. For two shards::

    Sum(w)   ->  AddN(Sum(w/part_0), Sum(w/part_1))
    Mean(w)  ->  RealDiv(AddN(Sum(w/part_0), Sum(w/part_1)), 4)
    Max(w)   ->  Maximum(Max(w/part_0), Max(w/part_1))
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.kernel.splitting.separable import reduced_axes
from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.index import StepIndex

_CHAINED = {"Max": "Maximum", "Min": "Minimum", "All": "LogicalAnd", "Any": "LogicalOr"}
"""For reductions whose results are not added: the operation that combines two results."""


def combine(
    graph: Editor, step: StepIndex, node: node_def_pb2.NodeDef, parts: Sequence[str], shape: tuple[int, ...]
) -> None:
    """Add nodes that combine `parts`, a reduction's copies on the shards of a variable of this shape.

    >>> from autodist_core.capture.example import example_step
    >>> step, graph = StepIndex(example_step()), Editor()
    >>> combine(graph, step, step.nodes["norm/Sum"], ["norm/Sum/part_0", "norm/Sum/part_1"], (3, 1))
    >>> graph["norm/Sum"].op, list(graph["norm/Sum"].input)
    ('AddN', ['norm/Sum/part_0', 'norm/Sum/part_1'])
    """
    add = partial(_add, graph, node)
    if node.op in _CHAINED:
        total = parts[0]
        for index, part in enumerate(parts[1:], 1):
            name = node.name if index == len(parts) - 1 else f"{node.name}/until_{index}"
            typed = {} if node.op in {"All", "Any"} else {"T": node.attr["T"]}
            total = add(_CHAINED[node.op], name, [total, part], **typed)
        return
    if node.op != "Mean":
        _sum(add, node.name, parts, node.attr["T"])
        return
    for part in parts:
        graph.change(part, "Sum")
    summed = _sum(add, f"{node.name}/sum", parts, node.attr["T"])
    size = prod(shape[axis] for axis in reduced_axes(step, node, len(shape)))
    count = constant_of(graph, f"{node.name}/size", size, tf.as_dtype(node.attr["T"].type), node)
    add("RealDiv", node.name, [summed, count], T=node.attr["T"])


def constant_of(graph: Editor, name: str, value: Any, dtype: tf.DType, reader: node_def_pb2.NodeDef) -> str:
    """Add a constant; it belongs to the same update and branch as the node that reads it.

    >>> from autodist_core.capture.example import example_step
    >>> step, graph = StepIndex(example_step()), Editor()
    >>> name = constant_of(graph, "norm/size", 3, tf.float32, step.nodes["norm/Sum"])
    >>> graph[name].attr["value"].tensor.float_val, naming.UPDATE in graph[name].attr
    ([3.0], True)
    """
    _add(graph, reader, "Const", name, dtype=dtype, value=tf.make_tensor_proto(value, dtype))
    graph.control(name, *naming.branch_of(reader)[-1:])
    return name


def _sum(add: Callable[..., str], name: str, parts: Sequence[str], dtype: Any) -> str:
    first, *others = parts
    if len(parts) > 2:
        first = add("Snapshot", f"{naming.FIRST}/{name}", [first], T=dtype)
    return add("AddN", name, [first, *others], N=len(parts), T=dtype)


def _add(
    graph: Editor, like: node_def_pb2.NodeDef, op: str, name: str, inputs: Sequence[str] = (), **attributes: Any
) -> str:
    graph.add(op, name, inputs, **attributes, **{naming.UPDATE: like.attr[naming.UPDATE]})
    path = naming.branch_of(like)
    if path:
        graph.mark_branch(name, path)
    return name
