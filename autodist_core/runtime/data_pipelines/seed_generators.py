"""The generators from which the iterators of a dataset draw their seeds: how many numbers each has drawn.

In: a dataset. Out: the numbers drawn so far, which another process can set. A `shuffle` draws seeds when TensorFlow
makes an iterator of it: of an inner one, that is the first time that the outer iterator needs it. The seeds are a
function of the numbers drawn before. TensorFlow saves these with an iterator only for the parts of the dataset that it
goes through at that moment.

The generators are resources of the process, which the graph of the dataset names. An iterator of a shuffle of one
element has the generator in its state: with such a state the numbers drawn are read, and set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.runtime.data_pipelines.graphs import constant_of, graph_of, inputs_of
from autodist_core.seams.table import SEED_GENERATOR
from autodist_core.step.editor import Editor
from autodist_core.step.naming import node_of

_SIMPLE = re.compile(
    "(Options|Prefetch|Repeat|(Parallel)?Map|(Parallel)?Batch|MapAndBatch|Take|Skip|AssertCardinality)Dataset(V[0-9]+)?$"
)
"""Datasets that have one iterator of their input at a time, from the beginning to the end."""
_DRAWN = "epoch_num_random_samples"
"""The name in an iterator's state of the numbers that its generator has drawn."""


class SeedGenerators:
    """The generators of a dataset, each once. A ValueError says why TensorFlow cannot write the dataset's graph.

    >>> numbers = tf.data.Dataset.range(3)
    >>> dataset = numbers.concatenate(numbers.shuffle(3, seed=1))
    >>> generators = SeedGenerators(dataset)
    >>> before = generators.drawn()
    >>> order = [int(number) for number in dataset]
    >>> before, generators.drawn()
    ([0], [2])
    >>> generators.set(before)
    >>> [int(number) for number in dataset] == order
    True
    """

    def __init__(self, dataset: Any) -> None:
        graph = graph_of(dataset)
        self._probes = [_Probe(handle) for handle in _handles(graph)]
        self.in_state = _in_state(graph)
        """Whether each state of an iterator has all of them: one shuffle, with nothing but simple parts after it."""
        files = {node.name: _cache_file(graph, node) for node in graph.node if node.op.startswith("CacheDataset")}
        self._files = [file for file in files.values() if file]
        self._cached = [
            _part(graph, node) for node in graph.node if files.get(node.name) == "" and _draws_before(graph, node)
        ]

    def drawn(self) -> list[int]:
        """How many numbers each generator has drawn."""
        return [probe.drawn() for probe in self._probes]

    def set(self, drawn: Sequence[int]) -> None:
        """Let each generator go on as if it had drawn so many numbers."""
        for probe, number in zip(self._probes, drawn, strict=True):
            probe.set(number)

    @property
    def writes_file(self) -> bool:
        """Whether the dataset keeps a cache in a file that is not complete.

        >>> SeedGenerators(tf.data.Dataset.range(9).cache("/no such folder/cache")).writes_file
        True
        """
        return any(not tf.io.gfile.exists(f"{file}.index") for file in self._files)

    @property
    def has_caches(self) -> bool:
        """Whether the dataset keeps elements in memory whose order was drawn."""
        return bool(self._cached)

    def fill_caches(self, drawn: Sequence[int]) -> None:
        """Fill these caches as the first iterator does, if it is made after so many drawn numbers.

        >>> dataset = tf.data.Dataset.range(9).shuffle(9, seed=1).cache()
        >>> generators = SeedGenerators(dataset)
        >>> generators.fill_caches([4])
        >>> generators.set([0])
        >>> kept, drawn = [int(number) for number in dataset], SeedGenerators(dataset).drawn()
        >>> other = tf.data.Dataset.range(9).shuffle(9, seed=1)
        >>> kept == [[int(number) for number in other] for _ in range(3)][2], drawn
        (True, [0])
        """
        for cached in self._cached:
            self.set(drawn)
            for _ in cached:
                pass


class _Probe:
    """An iterator that has a generator in its state."""

    def __init__(self, handle: Any) -> None:
        # The names of seeds and sizes are those of the operation. The seeds are not used: the generator has its own.
        one = tf.constant(1, tf.int64)
        variant = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)), buffer_size=one, seed=one,
            seed2=one, seed_generator=handle, output_types=[tf.int64], output_shapes=[tf.TensorShape([])],
        )
        dataset = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64))
        # Each iterator draws. The second one shows how many numbers that are, and the third one that they are undone.
        states = []
        for _ in range(3):
            self._iterator = iter(dataset)
            states.append(self._state())
            if len(states) == 2:
                first, second = (_read(state) for state in states)
                self.set(2 * first - second)
        if states[2] != states[0]:
            raise SEED_GENERATOR.error("the numbers that a generator has drawn could not be set")
        self.set(2 * first - second)

    def drawn(self) -> int:
        return _read(self._state())

    def set(self, number: int) -> None:
        state = tf.io.parse_tensor(_written(self._state(), number), tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=_resource(self._iterator), serialized=state)

    def _state(self) -> bytes:
        state = tf.raw_ops.SerializeIterator(resource_handle=_resource(self._iterator), external_state_policy=1)
        found: bytes = tf.raw_ops.SerializeTensor(tensor=state).numpy()
        return found


def _handles(graph: Any) -> Iterator[Any]:
    """The handles of the generators that live in this process."""
    nodes, met = {node.name: node for node in graph.node}, set()
    for node in graph.node:
        names = inputs_of(node)
        if "seed_generator" not in names:
            continue
        source = nodes[node_of(node.input[names.index("seed_generator")])]
        tensor = source.attr["value"].tensor
        if source.op == "Const" and tensor.resource_handle_val and tensor.resource_handle_val[0].name not in met:
            met.add(tensor.resource_handle_val[0].name)
            yield tf.io.parse_tensor(tensor.SerializeToString(), tf.resource)


def _in_state(graph: Any) -> bool:
    nodes = {node.name: node for node in graph.node}
    seeded = [node.name for node in graph.node if "seed_generator" in inputs_of(node)]
    (node,) = (each for each in graph.node if each.op == "_Retval")
    while seeded and node.name not in seeded and (node.op == "_Retval" or _SIMPLE.match(node.op)):
        node = nodes[node_of(node.input[0])]
    return seeded in ([], [node.name])


def _cache_file(graph: Any, node: Any) -> str:
    """The file in which a cache is kept; empty if it is kept in memory."""
    nodes = {each.name: each for each in graph.node}
    found: bytes = constant_of(nodes, node.input[1]) or b""
    return found.decode()


def _draws_before(graph: Any, node: Any) -> bool:
    """Whether an operation gets its elements from datasets that draw seeds."""
    nodes, waiting = {each.name: each for each in graph.node}, [node.name]
    met = set(waiting)
    while waiting:
        names = {node_of(name) for name in nodes[waiting.pop()].input} - met
        met |= names
        waiting.extend(names)
    return any("seed_generator" in inputs_of(nodes[name]) for name in met)


def _part(graph: Any, node: Any) -> Any:
    """The dataset that ends with an operation, with the same generators and caches."""
    part = Editor.of(graph)
    (result,) = (each.name for each in graph.node if each.op == "_Retval")
    part.edit(result).set_input(0, node.name)
    shapes = [tf.TensorShape(shape) for shape in node.attr["output_shapes"].list.shape]
    specs = tuple(map(tf.TensorSpec, shapes, node.attr["output_types"].list.type))
    variant = tf.raw_ops.DatasetFromGraph(graph_def=part.graph_def().SerializeToString())
    return tf.data.experimental.from_variant(variant, specs)


def _resource(iterator: Any) -> Any:
    return tf.nest.flatten(iterator, expand_composites=True)[0]


# The state of an iterator ------------------------------------------------------------------------------------------
# A tensor of entries. Each has the names of its values, and the values in a compressed form.


def _read(state: bytes) -> int:
    """How many numbers the generator in a state has drawn."""
    entries = _entries(state)
    entry, place = _place(entries)
    return int(_values(entry)[place])


def _written(state: bytes, drawn: int) -> bytes:
    """The state, with so many drawn numbers."""
    entries = _entries(state)
    entry, place = _place(entries)
    values = [*_values(entry)]
    values[place] = tf.constant(drawn, tf.int64)
    compressed = tf.raw_ops.SerializeTensor(tensor=tf.raw_ops.CompressElement(components=values)).numpy()
    entry.tensors[0].CopyFrom(_tensor(_entries(compressed), []))
    written: bytes = _tensor(entries, [len(entries)]).SerializeToString()
    return written


def _place(entries: Sequence[Any]) -> tuple[Any, int]:
    """The entry that has the drawn numbers, and their place among its values."""
    for entry in entries:
        names = entry.metadata.decode().split("@@")[1:]
        if _DRAWN in names:
            return entry, names.index(_DRAWN)
    raise SEED_GENERATOR.error(f"an iterator's state has no {_DRAWN}")


def _values(entry: Any) -> Sequence[Any]:
    compressed = tf.io.parse_tensor(entry.tensors[0].SerializeToString(), tf.variant)
    count = entry.metadata.decode().count("@@")
    return tf.raw_ops.UncompressElement(
        compressed=compressed, output_types=[tf.int64] * count, output_shapes=[tf.TensorShape([])] * count
    )


def _entries(serialized: bytes) -> list[Any]:
    """The entries of a serialized tensor of variants: first their sizes, and then they themselves."""
    tensor = type(tf.make_tensor_proto(0)).FromString(serialized)
    content, at, sizes = tensor.tensor_content, 0, []
    for _ in range(tensor.tensor_shape.dim[0].size if tensor.tensor_shape.dim else 1):
        size = shift = 0
        while True:
            byte, at = content[at], at + 1
            size, shift = size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        sizes.append(size)
    entries = []
    for size in sizes:
        entry = tensor.variant_val.add()
        entry.ParseFromString(content[at : at + size])
        entries.append(entry)
        at += size
    return entries


def _tensor(entries: Sequence[Any], shape: Sequence[int]) -> Any:
    tensor = type(tf.make_tensor_proto(0))(dtype=tf.variant.as_datatype_enum)
    tensor.tensor_shape.CopyFrom(tf.TensorShape(shape).as_proto())
    tensor.variant_val.extend(entries)
    return tensor
