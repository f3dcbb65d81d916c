"""Which operations of a traced graph are a tape's work, and which commute with a sum over replicas.

TensorFlow remembers where each operation was created. What was created while gradients were computed is a gradient's
work, whatever scope it got: the gradients of a `tf.function`, a `tf.custom_gradient` or a recomputation have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

_COMPUTING_GRADIENTS = {("imperative_grad.py", "imperative_grad"), ("gradients_util.py", "_GradientsHelper")}
# Operations that commute with a sum over replicas when everything they read does.
_LINEAR = {"AddN", "Identity", "IdentityN", "ConcatV2", "Reshape", "Cast", "Add", "AddV2", "Sub", "Neg",
           "Squeeze", "ExpandDims", "UnsortedSegmentSum", "Pack"}
# Inputs of these that say where, not how much.
_POSITIONS = {"ConcatV2": (-1,), "Reshape": (1,), "ExpandDims": (1,), "UnsortedSegmentSum": (1, 2)}
_SCALING = {"Mul": (0, 1), "RealDiv": (0,), "DivNoNan": (0,)}
# Operations that run other graphs, and the attributes that name these.
_RUNNING = {"PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",),
            "While": ("body", "cond"), "StatelessWhile": ("body", "cond"),
            "If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}


class Tape:
    """Which operations a tape made, and which compute with what it made."""

    def __init__(self) -> None:
        self._made: dict[Any, bool] = {}
        self._known: dict[Any, bool] = {}

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

    def is_source(self, tensor: Any) -> bool:
        """Whether a tensor is a gradient as a tape made it, here or in a graph that runs here."""
        return self.made(tensor.op) or (self._runs_one(tensor.op) and self.is_linear(tensor))

    def is_linear(self, tensor: Any, given: frozenset[Any] = frozenset()) -> bool:
        """Whether a tensor is what tapes made, or `given`, up to operations that commute with a sum over replicas."""
        operation = tensor.op
        if self.made(operation) or _key(operation) in given:
            return True
        inputs = list(operation.inputs)
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
        if operation.type.endswith("If"):
            # A choice by a gradient would be another one on each replica.
            chooser = handed.pop(0)
            if self.reaches(chooser.op) or _key(chooser.op) in given:
                return False
        linear = {n for n, source in enumerate(handed) if _is_zero(source.op) or self.is_linear(source, given)}
        if operation.type.endswith("While"):
            body, condition = graphs
            # What a round hands to the next must be so, too.
            while lost := {n for n in linear if not self.is_linear(body.outputs[n], _placeholders(body, linear))}:
                linear -= lost
            asked = {n for n in linear if _reads(condition.outputs[0], _placeholders(condition, [n]))}
            return index in linear and not asked
        return all(self.is_linear(graph.outputs[index], _placeholders(graph, linear)) for graph in graphs)


def _key(operation: Any) -> tuple[int, str]:
    return id(operation.graph), operation.name


def _graphs_of(operation: Any) -> list[Any]:
    """The graphs that an operation runs, as they were traced."""
    names = [operation.get_attr(attribute).name for attribute in _RUNNING.get(operation.type, ())]
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


def _is_zero(operation: Any) -> bool:
    if operation.type == "Const":
        return not np.any(tf.make_ndarray(operation.get_attr("value")))
    return bool(operation.type == "ZerosLike")


def is_same_everywhere(operation: Any) -> bool:
    """Whether a value is computed from constants alone, and so is the same on every replica."""
    if operation.type == "Placeholder" or operation.op_def.is_stateful:
        return False
    return all(is_same_everywhere(source.op) for source in operation.inputs)
