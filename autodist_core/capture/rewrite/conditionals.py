"""Replace the conditionals of the update by the nodes of their branches.

In: a captured graph. Out: the same graph without conditionals in the update, and for each conditional the nodes of its
branches that have effects. For an update that runs only if a condition holds::

    If(finite, w, g)  ->  pivot = Switch(finite, finite)
                          in    = Switch(g, finite)
                          AssignSubVariableOp(w, in:1)        alive in the branch `then` only

Gradient accumulation, loss scaling and the overwriting of averages put the whole update into one conditional, which
takes every gradient and every variable. Owners of different variables cannot share that node. TensorFlow's runtime
replaces such a node in the same way before it runs the graph.

A value that enters a branch goes through a `Switch`. A value that leaves it goes through a `Merge`. A node without
inputs from the branch waits for the pivot of the branch. The attribute `_branch` of a node has the pivots of all
branches around it, outermost first. Where a branch is not taken, its nodes are dead, and a control edge would also end
the nodes outside the branch that wait for them (see `order.py`).
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.seams.table import FUNCTION_TO_GRAPH
from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.op_types import CONDITIONALS

_RESOURCE = tf.resource.as_datatype_enum


def take_apart(graph: Editor) -> tuple[Editor, dict[str, tuple[str, ...]]]:
    """Replace the conditionals of the update; return the new graph, and the nodes with effects of each conditional.

    >>> kernel = tf.Variable(1.0)
    >>> def update(finite):
    ...     tf.cond(finite, lambda: kernel.assign_add(1.0), lambda: kernel)
    >>> function = tf.function(update, autograph=False).get_concrete_function(tf.TensorSpec((), tf.bool))
    >>> graph = Editor.of(function.graph.as_graph_def())
    >>> for node in list(graph):
    ...     graph.mark_update(node.name, 0)
    >>> graph, effects = take_apart(graph)
    >>> "cond" in graph, sorted(graph[name].op for name in effects["cond"])
    (False, ['AssignAddVariableOp', 'ReadVariableOp', 'ReadVariableOp'])
    """
    effects: dict[str, tuple[str, ...]] = {}
    if not any(map(_is_ours, graph)):
        return graph, effects
    with tf.Graph().as_default() as library:  # a body may call other functions, which must be there
        tf.graph_util.import_graph_def(graph.empty().graph_def())
    while any(map(_is_ours, graph)):
        flat = graph.empty()
        renamed: dict[str, str] = {}
        for node in graph:
            if _is_ours(node):
                outputs, effects[node.name] = _Inlining(node, library, flat).run()
                renamed |= outputs
            else:
                flat.copy_captured(node, node.name, node.input)
        for node in flat:
            # The kernel `Order` adds control edges anew, from the variables that each node reads and writes.
            kept = (name for name in node.input if not (name.startswith("^") and name[1:] in effects))
            flat.change(node.name, inputs=[renamed.get(name, name) for name in kept])
        graph = flat
    return graph, {name: tuple(_flat(name, effects)) for name in effects}


def _is_ours(node: node_def_pb2.NodeDef) -> bool:
    return node.op in CONDITIONALS and naming.UPDATE in node.attr


def _flat(name: str, effects: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the nodes with effects of a conditional, with those of the conditionals inside it."""
    found = []
    for effect in effects[name]:
        found += _flat(effect, effects) if effect in effects else [effect]
    return found


class _Inlining:
    """Adds the nodes of one conditional to a graph."""

    def __init__(self, node: node_def_pb2.NodeDef, library: tf.Graph, graph: Editor) -> None:
        self._node = node
        self._library = library
        self._graph = graph
        predicate, *arguments = naming.data_inputs(node)
        self._predicate = predicate
        self._arguments = list(zip(arguments, node.attr["Tin"].list.type, strict=True))
        self._handles = {source for source, dtype in self._arguments if dtype == _RESOURCE}
        self._path = naming.branch_of(node)

    def run(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Add a `Switch` for the predicate, both branches, and a `Merge` for each result.

        Return the tensor in place of each result of the conditional, by the result's name, and the nodes of its
        branches that have effects.
        """
        name = self._node.name
        self._add("Switch", f"{name}/pivot", [self._predicate, self._predicate], T=tf.bool)
        (otherwise, effects), (then, more) = self._branch("else", 0), self._branch("then", 1)
        outputs: dict[str, str] = {}
        for index, dtype in enumerate(self._node.attr["Tout"].list.type):
            merge = f"{name}/out_{index}"
            self._add("Merge", merge, [otherwise[index], then[index]], T=tf.as_dtype(dtype), N=2)
            outputs |= {f"{name}:{index}": merge} | ({name: merge} if index == 0 else {})
        return outputs, (*effects, *more)

    def _branch(self, label: str, side: int) -> tuple[list[str], list[str]]:
        """Add the nodes of one branch; return the tensors of its results, and its nodes with effects."""
        prefix = f"{self._node.name}/{label}"
        pivot = f"{prefix}_pivot"
        self._add("Identity", pivot, [naming.tensor(f"{self._node.name}/pivot", side)], T=tf.bool)
        function = self._graph.functions[self._node.attr[f"{label}_branch"].func.name]
        with self._library.as_default():
            body, tensors = FUNCTION_TO_GRAPH.get()(function)
        arguments = {argument.name: index for index, argument in enumerate(function.signature.input_arg)}

        def tensor(source: str) -> str:
            producer, output = naming.split(source)
            if producer in arguments:
                return self._argument(arguments[producer], side)
            return naming.tensor(f"{prefix}/{producer}", output)

        for node in body.node:
            if node.name in arguments:
                continue
            values = [tensor(source) for source in naming.data_inputs(node)]
            before = [
                f"^{prefix}/{naming.node_of(source)}" for source in node.input
                if naming.is_control(source) and naming.node_of(source) not in arguments
            ]
            # A node that reads handles only waits for the pivot: it is dead where the branch is not taken.
            gate = [] if set(values) - self._handles else [f"^{pivot}"]
            name = f"{prefix}/{node.name}"
            self._graph.copy(node, name, [*values, *before, *gate], node.device)
            self._mark(name, (*self._path, pivot))
        results = [tensor(tensors[function.ret[result.name]]) for result in function.signature.output_arg]
        return results, [f"{prefix}/{effect}" for effect in function.control_ret.values()]

    def _argument(self, index: int, side: int) -> str:
        """Return the tensor that a branch reads for an argument: a handle itself, else one side of a `Switch`."""
        source, dtype = self._arguments[index]
        if dtype == _RESOURCE:
            return source
        switch = f"{self._node.name}/in_{index}"
        if switch not in self._graph:
            self._add("Switch", switch, [source, self._predicate], T=tf.as_dtype(dtype))
        return naming.tensor(switch, side)

    def _add(self, op: str, name: str, inputs: list[str], **attributes: Any) -> None:
        self._graph.add(op, name, inputs, **attributes)
        self._mark(name, self._path)

    def _mark(self, name: str, path: tuple[str, ...]) -> None:
        self._graph.mark_update(name, self._node.attr[naming.UPDATE].i)
        if path:
            self._graph.mark_branch(name, path)
