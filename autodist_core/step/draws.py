"""The operations of a captured graph that draw random numbers, in the graph itself and in the functions that it runs.

Nodes and functions come in, and a `Draw` for each drawing operation goes out. An operation takes its numbers from a
stream, and there are four kinds of streams (see `Stream`):

- A stateful operation has a seed in its attributes.
- A stateless operation reads a seed, or a key and a counter, from an input.
- Some operations read the state of a generator, or describe data to be shuffled. They offer no place for the seed of
  one replica.
- A stateful operation without a seed draws other numbers in every process and in every copy of the operation.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.seams.table import OP_DEF

# Operations that read the state of a generator directly and draw from it.
_OF_A_GENERATOR = {
    "StatefulRandomBinomial", "StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal",
    "StatefulUniform", "StatefulUniformFullInt", "StatefulUniformInt", "XlaRngBitGenerator", "XlaRngNormal",
    "XlaRngUniform",
}  # fmt: skip
# Operations that make keys and counters from a seed. They draw nothing.
_OF_SEEDS = {"StatelessRandomGetKey", "StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg"}
# Operations that have a seed in their attributes and draw, although TensorFlow does not call them stateful.
_POOLS = {"FractionalAvgPool", "FractionalMaxPool"}

_OF_DRAWING = re.compile(r"(stateless|random|truncated)_")
"""How the names of the scopes begin that TensorFlow's drawing functions open."""
_NUMBER = re.compile(r"_[0-9]+$")


class Stream(Enum):
    """The source of an operation's random numbers.

    >>> stream_of(node_def_pb2.NodeDef(op="StatefulUniform"))
    <Stream.FIXED: 'it is the same for every replica'>
    """

    ATTRIBUTE = "its seed is an attribute"
    INPUT = "its seed, or its key, is an input"
    FIXED = "it is the same for every replica"
    UNSEEDED = "it has no seed"


@dataclass(frozen=True)
class Draw:
    """One operation that draws random numbers.

    >>> Draw(("model/while", "model/noise/Uniform"), "StatelessRandomUniformV2", Stream.INPUT).path[-1]
    'model/noise/Uniform'
    """

    path: tuple[str, ...]
    """The node of the step's graph. For a draw in a function's body, the nodes that lead to the draw follow."""
    op: str
    stream: Stream

    @property
    def place(self) -> str:
        """The path as text."""
        return "/".join(self.path)

    @property
    def scope(self) -> str:
        """The innermost scope that a program has opened, such as a layer's, without TensorFlow's number; else the path.

        >>> Draw(("model_1/noise_1/stateless_random_normal/StatelessRandomNormalV2",), "", Stream.INPUT).scope
        'noise'
        """
        scopes = [each for each in self.place.split("/")[:-1] if not _OF_DRAWING.match(each)]
        return _NUMBER.sub("", scopes[-1]) if scopes else self.place


def stream_of(node: node_def_pb2.NodeDef) -> Stream | None:
    """Return the stream of a node, or None for a node that draws no random numbers by itself.

    >>> stream_of(node_def_pb2.NodeDef(op="StatelessRandomUniformV2")).value
    'its seed, or its key, is an input'
    >>> stream_of(node_def_pb2.NodeDef(op="RandomUniform")).value
    'it has no seed'
    >>> stream_of(node_def_pb2.NodeDef(op="MatMul"))
    """
    stream = _stream(node.op)
    if stream is Stream.ATTRIBUTE and not node.attr["seed"].i and not node.attr["seed2"].i:
        return Stream.UNSEEDED
    return stream


def may_draw(op: str) -> bool:
    """Whether operations of this type draw random numbers by themselves.

    >>> may_draw("StatelessShuffle"), may_draw("RandomShuffle"), may_draw("Shape")
    (True, True, False)
    """
    return _stream(op) is not None


@cache
def seed_input(op: str) -> int:
    """Return the position of the input that holds the seed or the key of an operation with `Stream.INPUT`.

    >>> seed_input("StatelessRandomUniformV2"), seed_input("StatelessMultinomial")
    (1, 2)
    """
    names = _inputs(op)
    return names.index("key" if "key" in names else "seed")


def seed_type(node: node_def_pb2.NodeDef) -> tf.DType:
    """Return the type of the input that holds the seed or the key of a node with `Stream.INPUT`.

    >>> seed_type(node_def_pb2.NodeDef(op="StatelessRandomUniformV2"))
    tf.uint64
    """
    argument = OP_DEF.get()(node.op).input_arg[seed_input(node.op)]
    return tf.as_dtype(node.attr[argument.type_attr].type if argument.type_attr else argument.type)


@cache
def _stream(op: str) -> Stream | None:
    definition, names = OP_DEF.get()(op), set(_inputs(op))
    if op in _OF_A_GENERATOR or names >= {"seed", "seed2"}:
        return Stream.FIXED
    if op in _OF_SEEDS or definition is None:
        return None
    if names >= {"key", "counter"} or "seed" in names:
        return Stream.INPUT
    seeded = {"seed", "seed2"} <= {attribute.name for attribute in definition.attr}
    if seeded and (definition.is_stateful or op in _POOLS):
        return Stream.ATTRIBUTE
    return Stream.UNSEEDED if op == "NonDeterministicInts" else None


@cache
def _inputs(op: str) -> tuple[str, ...]:
    definition = OP_DEF.get()(op)
    return () if definition is None else tuple(argument.name for argument in definition.input_arg)


@cache
def _function_attributes(op: str) -> tuple[str, ...]:
    definition = OP_DEF.get()(op)
    found = () if definition is None else definition.attr
    return tuple(attribute.name for attribute in found if attribute.type in ("func", "list(func)"))


def function_references(node: node_def_pb2.NodeDef) -> Iterator[Any]:
    """Yield the parts of a node's attributes that name a function which the node runs.

    >>> node = node_def_pb2.NodeDef(op="StatefulPartitionedCall")
    >>> node.attr["f"].func.name = "body"
    >>> [reference.name for reference in function_references(node)]
    ['body']
    """
    for attribute in _function_attributes(node.op):
        if attribute in node.attr:
            value = node.attr[attribute]
            yield from [value.func] if value.HasField("func") else value.list.func


class Draws:
    """The random draws of the nodes of a graph and of its functions.

    >>> Draws([]).of(node_def_pb2.NodeDef(name="noise", op="RandomUniform"))
    (Draw(path=('noise',), op='RandomUniform', stream=<Stream.UNSEEDED: 'it has no seed'>),)
    """

    def __init__(self, functions: Iterable[Any]) -> None:
        self.functions = {function.signature.name: function for function in functions}
        self._inside: dict[str, tuple[Draw, ...]] = {}

    def of(self, node: node_def_pb2.NodeDef) -> tuple[Draw, ...]:
        """Return the draws of one node: its own draw, and the draws in the functions that it runs."""
        stream = stream_of(node)
        found = [] if stream is None else [Draw((node.name,), node.op, stream)]
        for name in self.run_by(node):
            found += [Draw((node.name, *draw.path), draw.op, draw.stream) for draw in self.inside(name)]
        return tuple(found)

    def inside(self, function: str) -> tuple[Draw, ...]:
        """Return the draws in a function's body and in the functions that the body runs."""
        if function not in self._inside:
            self._inside[function] = ()  # ends the recursion of a function that runs itself
            nodes = self.functions[function].node_def if function in self.functions else ()
            self._inside[function] = tuple(draw for node in nodes for draw in self.of(node))
        return self._inside[function]

    def run_by(self, node: node_def_pb2.NodeDef) -> list[str]:
        """Return the functions that a node runs, each once."""
        if node.op in self.functions:
            return [node.op]
        return list(dict.fromkeys(reference.name for reference in function_references(node)))
