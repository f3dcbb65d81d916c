"""Find the draws from seeds of their own: every replica makes them as they were captured.

In: the index of a captured step. Out: the paths of these draws (see `step.draws.Draw`). For a layer with dropout, and
noise whose seed comes with each example::

    dropout   seed: the state of a generator     each replica draws its own numbers
    noise     seed: a part of the batch's rows   frozenset({("map/while", "noise")}): the rows have the seeds

In a step with `explicit_seeds`, which is a function of `run()`, this holds for every seed that is not made of the state
of a generator, as in `tf.random.stateless_normal(shape, seed=[1, 2])`. The values behind a seed are followed into the
functions that the graph runs, and out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tensorflow.core.framework import node_def_pb2

from autodist_core.step import naming
from autodist_core.step.draws import Stream, function_references, seed_input
from autodist_core.step.index import StepIndex, analysis

_SIZES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "TensorListLength"}
_CALLS = {"PartitionedCall": 0, "StatefulPartitionedCall": 0}
_BRANCHES = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}
"""Operations that run a function on their inputs, behind this many others."""
_LOOPS = {"While", "StatelessWhile"}


@analysis
def seeded_alone(step: StepIndex) -> frozenset[tuple[str, ...]]:
    """Return the paths of the draws whose seed is in the batch's rows, or is explicit in a step with `explicit_seeds`.

    >>> import tensorflow as tf
    >>> from autodist_core import GraphItem
    >>> with tf.Graph().as_default() as graph:
    ...     noise = tf.raw_ops.StatelessRandomNormal(shape=[2], seed=[1, 2], name="noise")
    >>> graph_bytes = graph.as_graph_def().SerializeToString()
    >>> [sorted(seeded_alone(StepIndex(GraphItem((), graph_bytes=graph_bytes, explicit_seeds=explicit))))
    ...  for explicit in (False, True)]
    [[], [('noise',)]]
    """
    search, found = _Search(step), set()
    rows = {tensor.name for tensor in step.item.inputs if tensor.has_rows}
    states = {handle for handle, name in step.handle_of.items() if step.variables[name].kind == "seed"}
    for draws in step.draws.values():
        for draw in draws:
            if draw.stream is Stream.INPUT:
                behind = search.behind_seed(draw.path)
                if behind & rows or (step.item.explicit_seeds and not behind & states):
                    found.add(draw.path)
    return frozenset(found)


class _Body:
    """The nodes of the step's graph, or of a function, and how their inputs are named."""

    def __init__(
        self, nodes: Iterable[node_def_pb2.NodeDef], split: Callable[[str], tuple[str, int]],
        arguments: Iterable[str] = (), results: Iterable[str] = (),
    ) -> None:
        self.nodes: Mapping[str, node_def_pb2.NodeDef] = {node.name: node for node in nodes}
        self.split = split
        self.arguments, self.results = tuple(arguments), tuple(results)


class _Search:
    def __init__(self, step: StepIndex) -> None:
        self._graph = _Body(step.graph.node, naming.split)
        self._functions = step.functions.functions
        self._bodies: dict[str, _Body] = {}
        self._known: dict[tuple[str, int], frozenset[int]] = {}

    def behind_seed(self, path: tuple[str, ...]) -> set[str]:
        """The nodes without inputs of which the seed of a draw is made."""
        return self._behind(self._graph, self._of_draw(self._graph, path))

    def _of_draw(self, body: _Body, path: tuple[str, ...]) -> list[str]:
        """The inputs of a node of which the seed of a draw is made: its own draw, or one in a function that it runs."""
        node, inside = body.nodes[path[0]], path[1:]
        inputs = list(naming.data_inputs(node))
        if not inside:
            return [inputs[seed_input(node.op)]]
        positions: set[int] = set()
        for name in self._run_by(node):
            function = self._body(name)
            if inside[0] in function.nodes:
                positions |= self._positions(function, self._of_draw(function, inside))
        return self._inputs(node, inputs, positions)

    def _inputs(self, node: node_def_pb2.NodeDef, inputs: list[str], positions: Iterable[int]) -> list[str]:
        """The inputs of a node that become these arguments of the functions that it runs."""
        if node.op in _LOOPS:
            return [inputs[position] for position in self._over_turns(node, positions)]
        before = 0 if node.op in self._functions else {**_CALLS, **_BRANCHES}.get(node.op)
        return inputs if before is None else [inputs[before + position] for position in positions]

    def _over_turns(self, node: node_def_pb2.NodeDef, positions: Iterable[int]) -> set[int]:
        """The values of a loop of which these are made, after any number of turns."""
        found: set[int] = set()
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if position not in found:
                found.add(position)
                waiting += self._of_result(node.attr["body"].func.name, position)
        return found

    def _through(self, node: node_def_pb2.NodeDef, output: int) -> list[str]:
        """The inputs of which an output of a node is made."""
        inputs = list(naming.data_inputs(node))
        if node.op in _SIZES:
            return []
        if node.op == "Switch":
            return inputs[:1]
        if node.op in _LOOPS:
            return self._inputs(node, inputs, [output])
        if node.op in _CALLS or node.op in _BRANCHES or node.op in self._functions:
            positions = (self._of_result(name, output) for name in self._run_by(node))
            return self._inputs(node, inputs, frozenset[int]().union(*positions))
        return inputs

    def _of_result(self, name: str, output: int) -> frozenset[int]:
        """The arguments of a function of which its result is made."""
        if (name, output) not in self._known:
            self._known[name, output] = frozenset()  # ends the recursion of a function that runs itself
            body = self._body(name)
            self._known[name, output] = self._positions(body, [body.results[output]])
        return self._known[name, output]

    def _positions(self, body: _Body, tensors: Iterable[str]) -> frozenset[int]:
        behind = self._behind(body, tensors)
        return frozenset(position for position, name in enumerate(body.arguments) if name in behind)

    def _behind(self, body: _Body, tensors: Iterable[str]) -> set[str]:
        """The arguments of a function, and the nodes without inputs, of which tensors are made."""
        ends: set[str] = set()
        seen: set[tuple[str, int]] = set()
        waiting = [body.split(tensor) for tensor in tensors]
        while waiting:
            name, output = waiting.pop()
            if (name, output) in seen:
                continue
            seen.add((name, output))
            if name not in body.nodes or not body.nodes[name].input:
                ends.add(name)
            else:
                waiting += [body.split(source) for source in self._through(body.nodes[name], output)]
        return ends

    def _run_by(self, node: node_def_pb2.NodeDef) -> list[str]:
        if node.op in self._functions:
            return [node.op]
        return list(dict.fromkeys(reference.name for reference in function_references(node)))

    def _body(self, name: str) -> _Body:
        if name not in self._bodies:
            function: Any = self._functions[name]
            self._bodies[name] = _Body(
                function.node_def, _split_in_function, [each.name for each in function.signature.input_arg],
                [function.ret[each.name] for each in function.signature.output_arg],
            )
        return self._bodies[name]


def _split_in_function(tensor: str) -> tuple[str, int]:
    """The node and the number of a tensor in a function's body, such as `node:output:1`, or an argument."""
    name, *rest = tensor.split(":")
    return name, int(rest[-1]) if rest else 0
