"""One generator of seeds: how many numbers it has drawn.

In: the handle of a generator, which is a resource of a process. Out: a probe, which reads and sets the numbers drawn.
A probe is an iterator of a shuffle of one element, because its state has those of the generator. Its graph and a state
can be sent to another process, to set a generator there.

A dataset may hold a generator whose name is gone: `choose_from_datasets` keeps another form of its selector, and the
name ends with the selector itself. Nothing can read such a generator. A ValueError says so.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.runtime.data_pipelines.graphs import graph_of, resources_of
from autodist_core.runtime.data_pipelines.iterator_states import set_state, state_of
from autodist_core.seams.table import SEED_GENERATOR

SPEC = tf.TensorSpec([], tf.int64)
"""The spec of a probe's elements."""
_DRAWN = "epoch_num_random_samples"
"""The name in an iterator's state of the numbers that its generator has drawn."""


class SeedProbe:
    """An iterator that has a generator in its state.

    >>> numbers = tf.data.Dataset.range(9).shuffle(9, seed=1)
    >>> (handle,) = resources_of(graph_of(numbers))
    >>> probe = SeedProbe(handle)
    >>> order = [int(number) for number in numbers]
    >>> probe.drawn()
    2
    >>> probe.set(0)
    >>> [int(number) for number in numbers] == order
    True
    """

    def __init__(self, handle: Any) -> None:
        # The names of seeds and sizes are those of the operation. The seeds are not used: the generator has its own.
        one = tf.constant(1, tf.int64)
        variant = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(1)), buffer_size=one, seed=one,
            seed2=one, seed_generator=tf.io.parse_tensor(handle.SerializeToString(), tf.resource),
            output_types=[tf.int64], output_shapes=[tf.TensorShape([])],
        )
        dataset = tf.data.experimental.from_variant(variant, SPEC).with_options(_as_written())
        self._graph = graph_of(dataset)
        (resource,) = resources_of(self._graph)
        # TensorFlow makes another one where this one is gone.
        if resource.resource_handle_val[0].name != handle.resource_handle_val[0].name:
            raise ValueError("the program no longer holds a shuffle in it, as the selector of choose_from_datasets")
        # Each iterator draws. The second one shows how many numbers that are, and the third one that they are undone.
        states = []
        for _ in range(3):
            self._iterator = iter(dataset)
            states.append(state_of(self._iterator))
            if len(states) == 2:
                first, second = (_read(state) for state in states)
                self.set(2 * first - second)
        if states[2] != states[0]:
            raise SEED_GENERATOR.error("the numbers that a generator has drawn could not be set")
        self.set(2 * first - second)

    def drawn(self) -> int:
        """How many numbers the generator has drawn."""
        return _read(state_of(self._iterator))

    def set(self, number: int) -> None:
        """Let the generator go on as if it had drawn so many numbers."""
        set_state(self._iterator, self.state(number))

    def state(self, number: int) -> bytes:
        """The state of the iterator, if so many numbers were drawn."""
        return _written(state_of(self._iterator), number)

    def graph_for(self, handle: Any) -> bytes:
        """The graph of such a probe for another generator."""
        graph = type(self._graph).FromString(self._graph.SerializeToString())
        (resource,) = resources_of(graph)
        resource.CopyFrom(handle)
        return graph.SerializeToString()


def _as_written() -> Any:
    """The options of a dataset that runs as it is written: so a state from one process is one in another."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


# The state of an iterator ------------------------------------------------------------------------------------------
# A tensor of entries. Each has the names of its values, and the values in a compressed form.


def _read(state: bytes) -> int:
    """How many numbers the generator in a state has drawn."""
    entry, place = _place(_entries(state))
    return int(_values(entry)[place])


def _written(state: bytes, drawn: int) -> bytes:
    """The state, with so many drawn numbers."""
    entries = _entries(state)
    entry, place = _place(entries)
    values = [*_values(entry)]
    values[place] = tf.constant(drawn, tf.int64)
    compressed = tf.raw_ops.SerializeTensor(tensor=tf.raw_ops.CompressElement(components=values)).numpy()
    entry.tensors[0].CopyFrom(_tensor(_entries(compressed), []))
    return _tensor(entries, [len(entries)]).SerializeToString()


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
