"""Which operations of a traced graph are a tape's work, and which commute with a sum over replicas.

TensorFlow remembers where each operation was created. What was created while gradients were computed is a gradient's
work, whatever scope it got: the gradients of a `tf.function`, a `tf.custom_gradient` or a recomputation have none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.traced import Traced
from autodist_core.errors import CaptureError

_COMPUTING_GRADIENTS = {("imperative_grad.py", "imperative_grad"), ("gradients_util.py", "_GradientsHelper")}
# Operations that commute with a sum over replicas when everything they read does.
_LINEAR = {"AddN", "Identity", "IdentityN", "ConcatV2", "Reshape", "Cast", "Add", "AddV2", "Sub", "Neg",
           "Squeeze", "ExpandDims", "UnsortedSegmentSum", "Pack"}
_SUMS = {"AddN", "Add", "AddV2", "Sub", "ConcatV2"}
# Inputs of these that say where, not how much.
_POSITIONS = {"ConcatV2": (-1,), "Reshape": (1,), "ExpandDims": (1,), "UnsortedSegmentSum": (1, 2)}
_SCALING = {"Mul": (0, 1), "RealDiv": (0,), "DivNoNan": (0,)}
# Operations that run other graphs, and the attributes that name these.
_RUNNING = {"PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",),
            "While": ("body", "cond"), "StatelessWhile": ("body", "cond"),
            "If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch"),
            "Case": ("branches",), "StatelessCase": ("branches",)}


class Tape:
    """Which operations a tape made, and which compute with what it made."""

    def __init__(self, traced: Traced) -> None:
        self._made: dict[Any, bool] = {}
        self._known: dict[Any, bool] = {}
        self._weighted = computed_from(traced.weighting)
        self._created = {operation.name: index for index, operation in enumerate(traced.graph.get_operations())}

    def require_one_weight(self, operations: Iterable[Any]) -> None:
        """Raise if a sum has terms that count the replica's part of the batch and terms that do not."""
        for operation in operations if self._weighted else ():
            # A tape adds up by AddN only; what else it makes may be a part of the model, recomputed.
            sums = {"AddN"} if self.made(operation) else _SUMS
            if operation.name in self._weighted and operation.type in sums:
                counted = {
                    source.op.name in self._weighted for source in operation.inputs
                    if source.dtype == operation.outputs[0].dtype and source.op.type != "Const"
                    and self.reaches(source.op)
                }
                if len(counted) > 1:
                    raise CaptureError(
                        f"gradients of two kinds are added up at {operation.name!r}: of a loss that went through "
                        "optimizer.scale_loss, and of one that did not. Let the sum of all terms go there, or none."
                    )

    def made(self, operation: Any) -> bool:
        """Whether an operation was created while gradients were computed."""
        key = _key(operation)
        if key not in self._made:
            self._made[key] = any(
                (os.path.basename(frame.filename), frame.name) in _COMPUTING_GRADIENTS
                for frame in operation.traceback or ()
            )
        return self._made[key]

    def reaches(self, operation: Any) -> bool:
        """Whether an operation is a tape's work, runs a graph in which one works, or computes with what one made."""
        waiting = [operation]
        while waiting:
            current = waiting[-1]
            if _key(current) in self._known:
                waiting.pop()
            elif self.made(current) or self._runs_one(current):
                self._known[_key(current)] = True
            else:
                unknown = [tensor.op for tensor in current.inputs if _key(tensor.op) not in self._known]
                if unknown:
                    waiting.extend(unknown)
                else:
                    self._known[_key(current)] = any(self._known[_key(tensor.op)] for tensor in current.inputs)
        return self._known[_key(operation)]

    def require_linear_through_variables(self, variable: str, tensor: Any, updates: Collection[str]) -> None:
        """Raise if a gradient went through a variable in this step, and what came out is transformed."""
        waiting, seen = [(tensor.op, False)], set()
        while waiting:
            operation, transformed = waiting.pop()
            if (operation.name, transformed) in seen or self.made(operation):
                continue
            seen.add((operation.name, transformed))
            if operation.type == "ReadVariableOp":
                if transformed and self._left_in(operation, updates):
                    raise CaptureError(
                        f"the gradient of {variable!r} is made of what this step left of gradients in a variable "
                        f"(read at {operation.name!r}), and not linearly: each replica would do it by itself. Let the "
                        "optimizer keep such state (momentum, gradient_accumulation_steps) and clip."
                    )
            else:
                linear = operation.type in _LINEAR or operation.type in _SCALING
                waiting.extend((source.op, transformed or not linear) for source in operation.inputs)

    def _left_in(self, read: Any, updates: Collection[str]) -> bool:
        """Whether the step has written a variable with something made of gradients before it reads it."""
        return any(
            writer.type.startswith("Assign") and writer.name not in updates and self.reaches(writer.inputs[1].op)
            and self._created[writer.name] < self._created[read.name] for writer in read.inputs[0].consumers()
        )

    def is_source(self, tensor: Any) -> bool:
        """Whether a tensor is a gradient as a tape made it, here or in a graph that runs here."""
        return self.made(tensor.op) or (self._runs_one(tensor.op) and self.is_linear(tensor))

    def is_linear(self, tensor: Any, given: frozenset[Any] = frozenset()) -> bool:
        """Whether a tensor is what tapes made, or `given`, up to operations that commute with a sum over replicas."""
        operation = tensor.op
        if self.made(operation) or _key(operation) in given:
            return True
        inputs = list(operation.inputs)
        if operation.type == "Cast" and not _keeps_all(inputs[0].dtype, tensor.dtype):
            return False
        # Of rows that were looked up once, the number depends on what the rows are.
        if operation.type == "UnsortedSegmentSum" and not tensor.shape.is_fully_defined():
            return False
        if operation.type in _LINEAR:
            skipped = {inputs[position].name for position in _POSITIONS.get(operation.type, ())}
            read = [source for source in inputs if source.name not in skipped]
            return bool(inputs) and all(self.is_linear(source, given) for source in read)
        if operation.type in _SCALING:
            tainted = [n for n, source in enumerate(inputs) if self.reaches(source.op) or _key(source.op) in given]
            return (
                len(tainted) == 1
                and tainted[0] in _SCALING[operation.type]
                and self.is_linear(inputs[tainted[0]], given)
                and is_same_everywhere(inputs[1 - tainted[0]].op)
            )
        return operation.type in _RUNNING and self._is_linear_inside(tensor, given)

    def _runs_one(self, operation: Any) -> bool:
        return any(self.reaches(inner) for graph in _graphs_of(operation) for inner in graph.get_operations())

    def _is_linear_inside(self, tensor: Any, given: frozenset[Any]) -> bool:
        """Whether the graphs that an operation runs make a tensor linearly of what is handed to them."""
        operation, index = tensor.op, tensor.value_index
        handed, graphs = list(operation.inputs), _graphs_of(operation)
        # A choice by a gradient or by the batch would be another one on each replica.
        if operation.type.endswith(("If", "Case")) and not is_same_everywhere(handed.pop(0).op):
            return False
        linear = {n for n, source in enumerate(handed) if _is_zero(source.op) or self.is_linear(source, given)}
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


def computed_from(tensors: Iterable[Any]) -> frozenset[str]:
    """The operations that make some tensors or compute with them.

    Of where gradients come to count a replica's part of the batch, these are all that count it. What no tape made
    (zeros for a variable that the loss does not reach) counts as a mean, and does not.
    """
    found: set[str] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if operation.name not in found:
            found.add(operation.name)
            waiting.extend(reader for output in operation.outputs for reader in output.consumers())
    return frozenset(found)


def _key(operation: Any) -> tuple[int, str]:
    return id(operation.graph), operation.name


def _graphs_of(operation: Any) -> list[Any]:
    """The graphs that an operation runs, as they were traced."""
    found = [operation.get_attr(attribute) for attribute in _RUNNING.get(operation.type, ())]
    names = [function.name for each in found for function in (each if isinstance(each, list) else [each])]
    # TensorFlow has no public way from a function's name to the graph that remembers where it was traced.
    return [operation.graph._get_function(name).graph for name in names]


def _placeholders(graph: Any, positions: Iterable[int]) -> frozenset[Any]:
    return frozenset(_key(graph.inputs[position].op) for position in positions)


def _reads(tensor: Any, given: frozenset[Any]) -> bool:
    """Whether a tensor is computed from one of the given operations."""
    waiting, seen = [tensor.op], set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            waiting.extend(source.op for source in operation.inputs)
    return any(name in seen for _, name in given)


def _keeps_all(source: tf.DType, target: tf.DType) -> bool:
    """Whether a cast loses nothing: rounding each replica's gradient is not rounding the sum."""
    numbers = all(dtype.is_floating or dtype.is_complex for dtype in (source, target))
    return numbers and bool(tf.experimental.numpy.promote_types(source.real_dtype, target.real_dtype) == (
        target.real_dtype.as_numpy_dtype
    ))


def _is_zero(operation: Any) -> bool:
    if operation.type == "Const":
        return not np.any(tf.make_ndarray(operation.get_attr("value")))
    return bool(operation.type == "ZerosLike")


def is_same_everywhere(operation: Any) -> bool:
    """Whether a value is computed from constants alone, and so is the same on every replica."""
    if operation.type == "Placeholder" or operation.op_def.is_stateful:
        return False
    return all(is_same_everywhere(source.op) for source in operation.inputs)
