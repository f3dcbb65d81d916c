"""The generators from which the iterators of a dataset draw their seeds: how many numbers each has drawn.

In: a dataset. Out: the numbers drawn so far, which another process can set. A `shuffle` draws seeds when TensorFlow
makes an iterator of it: of an inner one, that is the first time that the outer iterator needs it. The seeds are a
function of the numbers drawn before. TensorFlow saves these with an iterator only for the parts of the dataset that it
goes through at that moment.

The generators are resources of the process, which the graph of the dataset names. `seed_probe.py` reads and sets what
one has drawn. A dataset that runs on another machine has generators there, whose names its graph there says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from autodist_core.runtime.data_pipelines.graphs import constant_of, dataset_of, graph_of, inputs_of, is_drawn_first
from autodist_core.runtime.data_pipelines.seed_probe import SeedProbe
from autodist_core.step.editor import Editor
from autodist_core.step.naming import node_of
from autodist_core.step.reaching import reached

_SIMPLE = re.compile(
    "(Options|Prefetch|Repeat|(Parallel)?Map|(Parallel)?Batch|MapAndBatch|Take|Skip|AssertCardinality)Dataset(V[0-9]+)?$"
)
"""Datasets that have one iterator of their input at a time, from the beginning to the end."""
_WRITES = re.compile("(Snapshot|Save)Dataset(V[0-9]+)?$")
_LONGEST = 1 << 16
"""Operations with more bytes hold arrays: they are no shuffles, and name no generator."""


def short_nodes(graph: Any) -> Any:
    """The operations of a written dataset, as far as they are short, each as bytes. A machine finds its own so.

    >>> len(short_nodes(graph_of(tf.data.Dataset.range(3)).SerializeToString()))
    5
    """
    _, (nodes,) = tf.io.decode_proto(graph, "tensorflow.GraphDef", ["node"], [tf.string])
    return tf.boolean_mask(nodes, tf.strings.length(nodes) < _LONGEST)


class SeedGenerators:
    """The generators of a dataset with this graph, each once.

    >>> numbers = tf.data.Dataset.range(3)
    >>> dataset = numbers.concatenate(numbers.shuffle(3, seed=1))
    >>> generators = SeedGenerators.of(dataset)
    >>> before = generators.drawn()
    >>> order = [int(number) for number in dataset]
    >>> before, generators.drawn()
    ([0], [2])
    >>> generators.set(before)
    >>> [int(number) for number in dataset] == order
    True
    """

    @classmethod
    def of(cls, dataset: Any) -> SeedGenerators:
        """Those of a dataset. A ValueError says why TensorFlow cannot write its graph."""
        return cls(graph_of(dataset))

    def __init__(self, graph: Any) -> None:
        handles = [*_handles(graph.node)]
        self._handles = list({handle.resource_handle_val[0].name: handle for handle in handles}.values())
        self.are_shared = len(self._handles) < len(handles)
        """Whether two shuffles draw from one generator, as where a dataset is joined with itself."""
        self.in_state = is_drawn_first(graph, "seed_generator", _SIMPLE)
        """Whether each state of an iterator has all of them: one shuffle, with nothing but simple parts after it."""
        files = {node.name: _cache_file(graph, node) for node in graph.node if node.op.startswith("CacheDataset")}
        self._files = [file for file in files.values() if file]
        self._writes = any(_WRITES.match(node.op) for node in graph.node)
        self._cached = [
            _part(graph, node) for node in graph.node if files.get(node.name) == "" and _draws_before(graph, node)
        ]

    @cached_property
    def _probes(self) -> list[SeedProbe]:
        return [SeedProbe(handle) for handle in self._handles]

    def drawn(self) -> list[int]:
        """How many numbers each generator has drawn. A ValueError says that the name of one is gone."""
        return [probe.drawn() for probe in self._probes]

    def set(self, drawn: Sequence[int]) -> None:
        """Let each generator go on as if it had drawn so many numbers."""
        for probe, number in zip(self._probes, drawn, strict=True):
            probe.set(number)

    def states(self, drawn: Sequence[int]) -> list[bytes]:
        """For each generator the state of a probe, if it has drawn so many numbers."""
        return [probe.state(number) for probe, number in zip(self._probes, drawn, strict=True)]

    def probes_for(self, nodes: Sequence[bytes]) -> list[bytes]:
        """The graph of a probe for each generator of the same dataset elsewhere, of which these are the operations.

        A ValueError says that there are more or fewer generators.

        >>> here, elsewhere = (tf.data.Dataset.range(9).shuffle(9, seed=1) for _ in range(2))
        >>> nodes = short_nodes(graph_of(elsewhere).SerializeToString()).numpy()
        >>> len(SeedGenerators.of(here).probes_for(nodes))
        1
        """
        found = tf.compat.v1.GraphDef()
        for node in nodes:
            found.node.add().ParseFromString(node)
        return [probe.graph_for(handle) for probe, handle in zip(self._probes, _handles(found.node), strict=True)]

    @property
    def writes_file(self) -> bool:
        """Whether the dataset writes files while it is gone through: a cache that is not complete, or a snapshot.

        >>> SeedGenerators.of(tf.data.Dataset.range(9).cache("/no such folder/cache")).writes_file
        True
        """
        return self._writes or any(not tf.io.gfile.exists(f"{file}.index") for file in self._files)

    @property
    def has_caches(self) -> bool:
        """Whether the dataset keeps elements in memory whose order was drawn."""
        return bool(self._cached)

    def fill_caches(self, drawn: Sequence[int]) -> None:
        """Fill these caches as the first iterator does, if it is made after so many drawn numbers.

        >>> dataset = tf.data.Dataset.range(9).shuffle(9, seed=1).cache()
        >>> generators = SeedGenerators.of(dataset)
        >>> generators.fill_caches([4])
        >>> generators.set([0])
        >>> kept, drawn = [int(number) for number in dataset], SeedGenerators.of(dataset).drawn()
        >>> other = tf.data.Dataset.range(9).shuffle(9, seed=1)
        >>> kept == [[int(number) for number in other] for _ in range(3)][2], drawn
        (True, [0])
        """
        for cached in self._cached:
            self.set(drawn)
            for _ in cached:
                pass


def _handles(operations: Sequence[Any]) -> Iterator[Any]:
    """The handle of each shuffle's generator. A generator inside a function has none."""
    nodes = {node.name: node for node in operations}
    for node in operations:
        names = inputs_of(node)
        if "seed_generator" not in names:
            continue
        source = nodes[node_of(node.input[names.index("seed_generator")])]
        tensor = source.attr["value"].tensor
        if source.op == "Const" and tensor.resource_handle_val:
            yield tensor


def _cache_file(graph: Any, node: Any) -> str:
    """The file in which a cache is kept; empty if it is kept in memory."""
    return (constant_of({each.name: each for each in graph.node}, node.input[1]) or b"").decode()


def _draws_before(graph: Any, node: Any) -> bool:
    """Whether an operation gets its elements from datasets that draw seeds."""
    nodes = {each.name: each for each in graph.node}
    before = reached([node.name], lambda name: map(node_of, nodes[name].input))
    return any("seed_generator" in inputs_of(nodes[name]) for name in before)


def _part(graph: Any, node: Any) -> Any:
    """The dataset that ends with an operation, with the same generators and caches."""
    part = Editor.of(graph)
    (result,) = (each.name for each in graph.node if each.op == "_Retval")
    part.change(result, inputs=[node.name])
    shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]
    specs = tuple(map(tf.TensorSpec, shapes, node.attr["output_types"].list.type))
    return dataset_of(part.graph_def(), specs)
