"""Conditionals of the update, taken apart: their nodes stand in the step's own graph, each alive in one branch only.

Accumulation, loss scaling and the overwriting of averages put the whole update into one conditional that takes every
gradient and every variable. Owners of different variables could not share it. TensorFlow's runtime lowers such a node
before it runs it; the same is done here, where the pieces can still be told apart: what enters a branch goes through a
`Switch`, what leaves goes through a `Merge`, and what has no input of its own waits for the branch's pivot.

Nodes of a branch carry its pivot, and those of the branches around it, outermost first, in the attribute `_branch`. A
control edge from such a node to one outside would end what comes after, where the branch is not taken (see `order.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from autodist_core.step.graph_item import BRANCH, UPDATE

_CONDITIONALS = {"If", "StatelessIf"}
_RESOURCE = tf.resource.as_datatype_enum


def take_apart(graph_def: Any) -> dict[str, tuple[str, ...]]:
    """Replace the update's conditionals by their nodes; returns, for each, the nodes with effects that it held."""
    if not any(_is_ours(node) for node in graph_def.node):
        return {}
    library = _Library(graph_def.library)
    effects: dict[str, tuple[str, ...]] = {}
    while any(_is_ours(node) for node in graph_def.node):
        nodes: list[node_def_pb2.NodeDef] = []
        renamed: dict[str, str] = {}
        for node in graph_def.node:
            if _is_ours(node):
                inlined = _Inlined(node, library)
                nodes += inlined.nodes
                renamed |= inlined.outputs
                effects[node.name] = tuple(inlined.effects)
            else:
                copy = node_def_pb2.NodeDef()
                copy.CopyFrom(node)
                nodes.append(copy)
        for node in nodes:
            node.input[:] = _redirected(node.input, renamed, effects)
        del graph_def.node[:]
        graph_def.node.extend(nodes)
    return {name: tuple(_flat(name, effects)) for name in effects}


def _is_ours(node: node_def_pb2.NodeDef) -> bool:
    return node.op in _CONDITIONALS and UPDATE in node.attr


def _redirected(inputs: Any, renamed: Mapping[str, str], gone: Mapping[str, Any]) -> list[str]:
    """Inputs that read a conditional's results read those of its `Merge`s; what waited for it no longer does.

    Order is rebuilt from what each node reads and writes.
    """
    return [renamed.get(name, name) for name in inputs if not (name.startswith("^") and name[1:] in gone)]


def _flat(name: str, effects: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Effects of a conditional, those of conditionals inside it included."""
    found = []
    for effect in effects[name]:
        found += _flat(effect, effects) if effect in effects else [effect]
    return found


class _Library:
    """The functions of a graph, as graphs."""

    def __init__(self, library: Any) -> None:
        self._functions = {function.signature.name: function for function in library.function}
        self._graph = tf.Graph()
        with self._graph.as_default():  # bodies name the functions that they call
            tf.graph_util.import_graph_def(type(tf.Graph().as_graph_def())(library=library))

    def body(self, name: str) -> tuple[Any, Any, dict[str, str]]:
        """A function, its body and what its tensors are called there."""
        function = self._functions[name]
        with self._graph.as_default():
            return function, *function_def_to_graph_def(function)


@dataclass
class _Inlined:
    """The nodes of one conditional."""

    node: node_def_pb2.NodeDef
    library: _Library
    nodes: list[node_def_pb2.NodeDef] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    effects: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        name, (predicate, *_) = self.node.name, self.node.input
        self._add("Switch", f"{name}/pivot", [predicate, predicate], T=tf.bool)
        self.arguments = [source for source in self.node.input if not source.startswith("^")][1:]
        results = [self._branch("else", 0), self._branch("then", 1)]
        for index, dtype in enumerate(self.node.attr["Tout"].list.type):
            merged = self._add(
                "Merge", f"{name}/out_{index}", [found[index] for found in results], T=tf.as_dtype(dtype), N=2
            )
            self.outputs |= {f"{name}:{index}": merged} | ({name: merged} if index == 0 else {})

    def _branch(self, label: str, side: int) -> list[str]:
        """Add the nodes of one branch; returns what it results in."""
        name = self.node.name
        pivot = self._add("Identity", f"{name}/{label}_pivot", [f"{name}/pivot:{side}"], T=tf.bool)
        path = [*self.node.attr[BRANCH].list.s, pivot.encode()]
        function, body, tensors = self.library.body(self.node.attr[f"{label}_branch"].func.name)
        real = {argument.name: index for index, argument in enumerate(function.signature.input_arg)}

        def tensor(source: str) -> str:
            producer, _, output = source.partition(":")
            if producer in real:
                return self._argument(real[producer], side)
            renamed = f"{name}/{label}/{producer}"
            return renamed if output in ("", "0") else f"{renamed}:{output}"

        for node in body.node:
            if node.name in real:
                continue
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            copy.name = f"{name}/{label}/{node.name}"
            values = [tensor(source) for source in node.input if not source.startswith("^")]
            before = [
                f"^{name}/{label}/{source[1:]}" for source in node.input
                if source.startswith("^") and source[1:] not in real
            ]
            handles = {source for source, dtype in self._arguments() if dtype == _RESOURCE}
            gate = [] if set(values) - handles else [f"^{pivot}"]
            copy.input[:] = [*values, *before, *gate]
            self._mark(copy, path)
            self.nodes.append(copy)
        self.effects += [f"{name}/{label}/{effect}" for effect in function.control_ret.values()]
        results = [tensor(tensors[function.ret[result.name]]) for result in function.signature.output_arg]
        return results

    def _arguments(self) -> list[tuple[str, int]]:
        return list(zip(self.arguments, self.node.attr["Tin"].list.type, strict=True))

    def _argument(self, index: int, side: int) -> str:
        """What a branch reads in place of an argument: the handle of a variable itself, else its side of a switch."""
        source, dtype = self._arguments()[index]
        if dtype == _RESOURCE:
            return source
        switch = f"{self.node.name}/in_{index}"
        if all(node.name != switch for node in self.nodes):
            self._add("Switch", switch, [source, self.node.input[0]], T=tf.as_dtype(dtype))
        return f"{switch}:{side}" if side else switch

    def _add(self, op: str, name: str, inputs: list[str], **attributes: Any) -> str:
        node = node_def_pb2.NodeDef(name=name, op=op, input=inputs)
        for key, value in attributes.items():
            if isinstance(value, tf.DType):
                node.attr[key].type = value.as_datatype_enum
            else:
                node.attr[key].i = value
        self._mark(node, list(self.node.attr[BRANCH].list.s))
        self.nodes.append(node)
        return name

    def _mark(self, node: node_def_pb2.NodeDef, path: list[bytes]) -> None:
        node.attr[UPDATE].i = self.node.attr[UPDATE].i
        if path:
            node.attr[BRANCH].list.s[:] = path
