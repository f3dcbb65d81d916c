"""Find the draws that every replica makes as they were captured: their numbers are those of one device.

In: the index of a captured step. Out: the paths of these draws (see `step.draws.Draw`). For a layer with dropout, noise
whose seed comes with each example, and draws from an explicit seed, as of `tf.random.stateless_normal(shape, [1, 2])`::

    dropout     seed: the state of a generator          each replica draws its own numbers
    noise       seed: a part of the batch's rows        found: the rows have the seeds
    projection  seed: explicit; shape: [5, 3]           found: one device has one projection for all examples
    jitter      seed: explicit; shape: the batch's      each replica draws its own numbers

In a step that `draws_as_one`, which `verify` compares, every draw is found but those whose size depends on the batch in
a way that cannot be followed (`capture.whole_draws`). In a step with `explicit_seeds`, which is a function of
`run()`, every draw from an explicit seed is found. The values behind a seed are followed into the functions that the
graph runs, and out of them.

The other draws of compute are those that each replica makes for itself. The update has draws, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorflow.core.framework import node_def_pb2

from autodist_core.step import naming
from autodist_core.step.draws import Draw, Stream, seed_input
from autodist_core.step.index import StepIndex, analysis
from autodist_core.step.op_types import FIRST_ARGUMENT, LOOPS, WITHOUT_VALUES
from autodist_core.step.reaching import reached

_SIZES = {*WITHOUT_VALUES, "TensorListLength"}
_SEED, _ALL, _ROUNDS = "its seed", "all of its inputs", "the rounds of the loops around it"
"""The parts of a draw behind which is looked. `_ALL` are its seed, its shape and its parameters."""


@analysis
def seeded_alone(step: StepIndex) -> frozenset[tuple[str, ...]]:
    """Return the paths of the draws that every replica makes as they were captured.

    >>> import tensorflow as tf
    >>> from autodist_core import GraphItem
    >>> with tf.Graph().as_default() as graph:
    ...     noise = tf.raw_ops.StatelessRandomNormal(shape=[2], seed=[1, 2], name="noise")
    >>> item = GraphItem((), graph_bytes=graph.as_graph_def().SerializeToString())
    >>> sorted(seeded_alone(StepIndex(item)))
    [('noise',)]
    """
    rows = step.batch
    seeds, sized = _OriginSearch(step), _OriginSearch(step, of_sizes=True)
    explicit = explicitly_seeded(step)
    # One device has the same numbers of a draw from an explicit seed that does not depend on the batch.
    found = {path for path in explicit if step.item.explicit_seeds or not sized.behind(path, _ALL) & rows}
    draws = [draw for draws in step.draws.values() for draw in draws if draw.stream is Stream.INPUT]
    if step.item.draws_as_one:
        whole = {draw.path for draw in draws if draw.path[-1].endswith(f"/{naming.OF_WHOLE_BATCH}")}
        found |= whole | {
            draw.path for draw in draws
            if not (sized.behind(draw.path, _ALL) | sized.behind(draw.path, _ROUNDS)) & rows
        }
    return frozenset(found | {draw.path for draw in draws if seeds.behind(draw.path, _SEED) & rows})


@analysis
def explicitly_seeded(step: StepIndex) -> frozenset[tuple[str, ...]]:
    """Return the paths of the draws whose seed is made neither of the state of a generator nor of the batch.

    >>> from autodist_core import GraphItem
    >>> explicitly_seeded(StepIndex(GraphItem(())))
    frozenset()
    """
    search = _OriginSearch(step)
    states = {handle for handle, name in step.handle_of.items() if step.variables[name].kind == "seed"}
    draws = [draw for draws in step.draws.values() for draw in draws if draw.stream is Stream.INPUT]
    return frozenset(draw.path for draw in draws if not search.behind(draw.path, _SEED) & (step.batch | states))


@dataclass(frozen=True)
class _Body:
    """The nodes of the step's graph, or of a function, and how their inputs are named."""

    nodes: Mapping[str, node_def_pb2.NodeDef]
    split: Callable[[str], tuple[str, int]]
    arguments: Sequence[str] = ()
    results: Sequence[str] = ()

    def is_end(self, name: str) -> bool:
        """Whether this is an argument, or a node without inputs."""
        return name not in self.nodes or not self.nodes[name].input


class _OriginSearch:
    """What is behind the tensors of a step; the batch is behind a size of it only if the search is `of_sizes`."""

    def __init__(self, step: StepIndex, of_sizes: bool = False) -> None:
        self._of_sizes = of_sizes
        self._graph = _Body(step.nodes, naming.split)
        self._draws = step.functions
        self._bodies: dict[str, _Body] = {}
        self._known: dict[tuple[str, int], frozenset[int]] = {}

    def behind(self, path: tuple[str, ...], what: str) -> set[str]:
        """The nodes without inputs of which a part of a draw is made."""
        return self._behind(self._graph, self._of_draw(self._graph, path, what))

    def _of_draw(self, body: _Body, path: tuple[str, ...], what: str) -> list[str]:
        """The inputs of a node of which a part of a draw is made: of its own, or of one in a function that it runs."""
        node, inside = body.nodes[path[0]], path[1:]
        inputs = list(naming.data_inputs(node))
        if not inside:
            return {_SEED: [inputs[seed_input(node.op)]], _ALL: inputs, _ROUNDS: []}[what]
        positions: set[int] = set()
        for name in self._draws.run_by(node):
            function = self._body(name)
            if inside[0] in function.nodes:
                positions |= self._positions(function, self._of_draw(function, inside, what))
        if what == _ROUNDS and node.op in LOOPS:
            positions |= self._of_result(node.attr["cond"].func.name, 0)
        return self._inputs(node, inputs, positions)

    def _inputs(self, node: node_def_pb2.NodeDef, inputs: list[str], positions: Iterable[int]) -> list[str]:
        """The inputs of a node that become these arguments of the functions that it runs."""
        if node.op in LOOPS:
            # A value after any number of turns may be made of any of these inputs.
            made_of = reached(positions, partial(self._of_result, node.attr["body"].func.name))
            return [inputs[position] for position in made_of]
        before = 0 if node.op in self._draws.functions else FIRST_ARGUMENT.get(node.op)
        return inputs if before is None else [inputs[before + position] for position in positions]

    def _through(self, node: node_def_pb2.NodeDef, output: int) -> list[str]:
        """The inputs of which an output of a node is made."""
        inputs = list(naming.data_inputs(node))
        if node.op in _SIZES and not self._of_sizes:
            return []
        if node.op == "Switch":
            return inputs[:1]
        if node.op in LOOPS:
            return self._inputs(node, inputs, [output])
        if node.op in FIRST_ARGUMENT or node.op in self._draws.functions:
            positions = (self._of_result(name, output) for name in self._draws.run_by(node))
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
        def before(tensor: tuple[str, int]) -> Iterable[tuple[str, int]]:
            name, output = tensor
            return () if body.is_end(name) else map(body.split, self._through(body.nodes[name], output))

        return {name for name, _ in reached(map(body.split, tensors), before) if body.is_end(name)}

    def _body(self, name: str) -> _Body:
        if name not in self._bodies:
            function: Any = self._draws.functions[name]
            self._bodies[name] = _Body(
                {node.name: node for node in function.node_def}, _split_in_function,
                [each.name for each in function.signature.input_arg],
                [function.ret[each.name] for each in function.signature.output_arg],
            )
        return self._bodies[name]


def _split_in_function(tensor: str) -> tuple[str, int]:
    """The node and the number of a tensor in a function's body, such as `node:output:1`, or an argument."""
    name, *rest = tensor.split(":")
    return name, int(rest[-1]) if rest else 0


@analysis
def drawn_by_replicas(step: StepIndex) -> tuple[Draw, ...]:
    """Return the draws of compute, in the order of the step, that are not the same as captured on every replica.

    Draws of the update are equal on all owners.

    >>> import tensorflow as tf
    >>> from autodist_core import GraphItem
    >>> with tf.Graph().as_default() as graph:
    ...     noise = tf.raw_ops.RandomStandardNormal(shape=[2], dtype=tf.float32, name="noise")
    >>> item = GraphItem((), outputs=("noise",), graph_bytes=graph.as_graph_def().SerializeToString())
    >>> [draw.path for draw in drawn_by_replicas(StepIndex(item))]
    [('noise',)]
    """
    outputs = [naming.node_of(name) for name in step.item.outputs]
    # A marker may be a part of the update.
    given = [source for marker in step.markers for source in step.sources(marker)]
    cone = step.cone([*given, *step.side_effects, *outputs], step.is_update)
    drawing = [name for name in step.in_order(cone.intersection(step.draws)) if not step.is_update(name)]
    alone = seeded_alone(step)
    return tuple(draw for name in drawing for draw in step.draws[name] if draw.path not in alone)


def drawn_explicitly(step: StepIndex) -> tuple[Draw, ...]:
    """Return those draws of the replicas whose seed is explicit. One device draws them once, for the whole batch.

    >>> from autodist_core import GraphItem
    >>> drawn_explicitly(StepIndex(GraphItem(())))
    ()
    """
    return tuple(draw for draw in drawn_by_replicas(step) if draw.path in explicitly_seeded(step))


def drawn_by_update(step: StepIndex) -> tuple[Draw, ...]:
    """Return the draws of the update, in the order of the step.

    >>> from autodist_core import GraphItem
    >>> drawn_by_update(StepIndex(GraphItem(())))
    ()
    """
    return tuple(draw for name in step.in_order(step.draws) if step.is_update(name) for draw in step.draws[name])
