"""What commutes with a sum over replicas: a gradient as a tape made it, and what is computed linearly from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.tape import Tape, draws, graphs_of, key
from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import reached_from, sources
from autodist_core.errors import CaptureError

# Operations that commute with a sum over replicas when everything they read does.
_LINEAR = {"AddN", "Identity", "IdentityN", "ConcatV2", "Reshape", "Cast", "Add", "AddV2", "Sub", "Neg",
           "Squeeze", "ExpandDims", "UnsortedSegmentSum", "Pack"}
# Inputs of these that say where, not how much.
_POSITIONS = {"ConcatV2": (-1,), "Reshape": (1,), "ExpandDims": (1,), "UnsortedSegmentSum": (1, 2)}
_SCALING = {"Mul": (0, 1), "RealDiv": (0,), "DivNoNan": (0,)}


class Linearity:
    """Which tensors are linear in what a tape made."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def is_source(self, tensor: Any) -> bool:
        """Whether a tensor is a gradient as a tape made it, here or in a graph that runs here."""
        return self._tape.made(tensor.op) or (self._tape.runs_one(tensor.op) and self.is_linear(tensor))

    def is_linear(self, tensor: Any, given: frozenset[Any] = frozenset()) -> bool:
        """Whether a tensor is what tapes made, or `given`, up to operations that commute with a sum over replicas."""
        operation = tensor.op
        if self._tape.made(operation) or key(operation) in given or _is_zero(operation):
            return True
        inputs = list(operation.inputs)
        if operation.type == "Cast" and not _keeps_all(inputs[0].dtype, tensor.dtype):
            return False
        if operation.type == "UnsortedSegmentSum" and not self._as_many_everywhere(tensor):
            return False
        if operation.type in _LINEAR:
            skipped = {inputs[position].name for position in _POSITIONS.get(operation.type, ())}
            read = [source for source in inputs if source.name not in skipped]
            return bool(inputs) and all(self.is_linear(source, given) for source in read)
        if operation.type in _SCALING:
            if any(_is_zero(inputs[position].op) for position in _SCALING[operation.type]):
                return True
            tainted = [n for n, source in enumerate(inputs) if self._tape.reaches(source.op) or key(source.op) in given]
            return (
                len(tainted) == 1
                and tainted[0] in _SCALING[operation.type]
                and self.is_linear(inputs[tainted[0]], given)
                and is_same_everywhere(inputs[1 - tainted[0]].op)
            )
        return bool(graphs_of(operation)) and self._is_linear_inside(tensor, given)

    def _as_many_everywhere(self, sums: Any) -> bool:
        """Whether rows are added up into as many on every replica: not those that each looked up, once each."""
        count = sums.op.inputs[2].op
        return sums.shape.is_fully_defined() or (
            # The shape that a tape gives a gradient of rows is its variable's.
            count.type == "StridedSlice" and self._tape.made(count.inputs[0].op)
        )

    def _is_linear_inside(self, tensor: Any, given: frozenset[Any]) -> bool:
        """Whether the graphs that an operation runs make a tensor linearly of what is handed to them."""
        operation, index = tensor.op, tensor.value_index
        handed, graphs = list(operation.inputs), graphs_of(operation)
        # A choice by a gradient or by the batch would be another one on each replica.
        if operation.type.endswith(("If", "Case")) and not is_same_everywhere(handed.pop(0).op):
            return False
        linear = {n for n, source in enumerate(handed) if self.is_linear(source, given)}
        if operation.type.endswith("While"):
            body, condition = graphs
            # What a round hands to the next must be so, too.
            while lost := {n for n in linear if not self.is_linear(body.outputs[n], _placeholders(body, linear))}:
                linear -= lost
            asked = {n for n in range(len(handed)) if _reads(condition.outputs[0], _placeholders(condition, [n]))}
            return index in linear and not asked & linear and all(
                is_same_everywhere(handed[n].op) for n in asked
            )
        return all(self.is_linear(graph.outputs[index], _placeholders(graph, linear)) for graph in graphs)


def require_linear_through_variables(traced: Traced, tape: Tape, updates: Collection[str]) -> None:
    """Raise if a gradient went through a variable in this step, and what came out is transformed."""
    created = {operation.name: index for index, operation in enumerate(traced.graph.get_operations())}

    def left_in(read: Any) -> bool:
        """Whether the step has written a variable with something made of gradients before it reads it."""
        return any(
            writer.type.startswith("Assign") and writer.name not in updates and tape.reaches(writer.inputs[1].op)
            and created[writer.name] < created[read.name] for writer in read.inputs[0].consumers()
        )

    for gradient in traced.gradients:
        # What is made of a gradient that is cut is the whole batch's, in a variable too.
        if tape.reaches(gradient.values.op):
            continue
        waiting, seen = [(gradient.values.op.inputs[0].op, False)], set()
        while waiting:
            operation, transformed = waiting.pop()
            if (operation.name, transformed) in seen or tape.made(operation):
                continue
            seen.add((operation.name, transformed))
            if operation.type != "ReadVariableOp":
                linear = operation.type in _LINEAR or operation.type in _SCALING
                waiting.extend((source, transformed or not linear) for source in sources(operation))
            elif transformed and left_in(operation):
                raise CaptureError(
                    f"the gradient of {gradient.variable!r} is made of what this step left of gradients in a variable "
                    f"(read at {operation.name!r}), and not linearly: each replica would do it by itself. Let the "
                    "optimizer keep such state (momentum, gradient_accumulation_steps) and clip."
                )


def is_same_everywhere(operation: Any) -> bool:
    """Whether a value is computed from constants alone, without random numbers, and so is the same on every replica."""
    found = reached_from([operation], sources).values()
    return not any(each.type == "Placeholder" or each.op_def.is_stateful or draws(each) for each in found)


def _placeholders(graph: Any, positions: Iterable[int]) -> frozenset[Any]:
    return frozenset(key(graph.inputs[position].op) for position in positions)


def _reads(tensor: Any, given: frozenset[Any]) -> bool:
    """Whether a tensor is computed from one of the given operations."""
    return any(key(operation) in given for operation in reached_from([tensor.op], sources).values())


def _keeps_all(source: tf.DType, target: tf.DType) -> bool:
    """Whether a cast loses nothing: rounding each replica's gradient is not rounding the sum."""
    numbers = all(dtype.is_floating or dtype.is_complex for dtype in (source, target))
    return numbers and bool(tf.experimental.numpy.promote_types(source.real_dtype, target.real_dtype) == (
        target.real_dtype.as_numpy_dtype
    ))


def _is_zero(operation: Any) -> bool:
    if operation.type == "Const":
        return not np.any(tf.make_ndarray(operation.get_attr("value")))
    return operation.type == "ZerosLike" or (operation.type == "Fill" and _is_zero(operation.inputs[1].op))
