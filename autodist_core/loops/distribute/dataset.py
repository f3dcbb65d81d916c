"""Datasets whose elements are values of each replica.

In: a `tf.data.Dataset` of global batches, or of batches for single replicas. Out: an iterable of elements that `run()`
takes. A loop over it works in Python, and inside a `tf.function`, where it becomes a loop of the graph.

A dataset or an iterator is flattened by TensorFlow (`__tf_flatten__`) into what is inside. So it is an argument of a
`tf.function` by the types of its elements: one that is made anew for each epoch is traced once, and no trace keeps it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from autodist_core.errors import NotYetError
from autodist_core.loops.calls.as_written import as_written
from autodist_core.loops.distribute.on_machines import mark, pipeline_of, say_fed_to_function
from autodist_core.loops.distribute.values import per_replica, split
from autodist_core.resource_spec import ResourceSpec
from autodist_core.runtime.data_pipelines import DataPipeline, Follower
from autodist_core.runtime.kept_arrays import kept_limit
from autodist_core.seams.table import PER_REPLICA_SPEC
from autodist_core.training.watching import read_by_pipeline


@dataclass(frozen=True)
class Elements:
    """How elements are made of the batches of a dataset. Each batch is an optional: it may be missing.

    >>> elements = Elements(replicas=2)
    >>> dataset = tf.data.Dataset.range(5).batch(3)
    >>> [each.numpy().tolist() for each in elements.element(elements.fetch(iter(dataset))).values]
    [[0, 1], [2]]
    >>> elements.spec(dataset.element_spec).is_compatible_with(split(tf.range(4, dtype=tf.int64), 2))
    True
    """

    replicas: int
    of_replicas: bool = False
    """Whether a batch is one replica's. At the end of the data, the last replicas get batches without examples. Else
    each batch is split over the replicas."""

    @property
    def batches(self) -> int:
        """The number of batches for one element."""
        return self.replicas if self.of_replicas else 1

    def spec(self, batch: Any) -> Any:
        """The spec of an element, of the spec of a batch. How many examples a replica gets is not known."""

        def each(spec: tf.TensorSpec) -> Any:
            shape = tf.TensorShape([None, *spec.shape[1:]]) if spec.shape.rank else spec.shape
            specs = [tf.TensorSpec(shape, spec.dtype)] * self.replicas
            return specs[0] if len(specs) == 1 else PER_REPLICA_SPEC.get()(*specs)

        return tf.nest.map_structure(each, batch)

    def fetch(self, iterator: Any, present: int = 0) -> tuple[Any, ...]:
        """The batches of one element, as many as are not present."""
        return tuple(iterator.get_next_as_optional() for _ in range(self.batches - present))

    def element(self, batches: Sequence[Any]) -> Any:
        """An element; at least the first batch is not missing.

        >>> dataset = DistributedDataset(tf.data.Dataset.range(5).batch(2), Elements(replicas=2, of_replicas=True))
        >>> [[each.numpy().tolist() for each in element.values] for element in dataset]
        [[[0, 1], [2, 3]], [[4], []]]
        """
        structure = batches[0].get_value()
        if not self.of_replicas:
            return split(structure, self.replicas)
        parts = [tf.nest.flatten(_or_empty(batch)) for batch in batches]
        return tf.nest.pack_sequence_as(structure, [per_replica(leaves) for leaves in zip(*parts, strict=True)])


def _or_empty(batch: Any) -> Any:
    def empty() -> Any:
        return tf.nest.map_structure(
            lambda spec: tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype), batch.element_spec
        )

    return tf.cond(batch.has_value(), batch.get_value, empty)


class _OfElements:
    """What a dataset and an iterator over elements have in common. What is `inside` has batches."""

    inside: Any
    _elements: Elements

    @classmethod
    def __tf_unflatten__(cls, metadata: Any, components: Any) -> Any:
        return cls(*components, *metadata)

    @property
    def element_spec(self) -> Any:
        """The types and shapes of an element, as a `tf.function` takes them for its `input_signature`."""
        return self._elements.spec(self.inside.element_spec)


class DistributedIterator(_OfElements, tf.distribute.DistributedIterator):
    """An iterator over elements, which works in Python and inside a `tf.function` that takes it.

    >>> iterator = iter(DistributedDataset(tf.data.Dataset.range(5).batch(3), Elements(2)))
    >>> [each.numpy().tolist() for each in next(iterator).values]
    [[0, 1], [2]]
    """

    def __init__(self, iterator: Any, elements: Elements, source: DistributedDataset | None = None) -> None:
        self.inside = iterator
        """The iterator over batches."""
        self._elements = elements
        self._source = source
        """The dataset, if machines run it: they keep it for as long as somebody goes through it."""
        pipeline = None if source is None else source.pipeline
        self._follower = None if pipeline is None else Follower(pipeline, kept_limit())

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        if self._follower is not None:
            # A traced function may take batches.
            self._follower.lose()
            if self._source is not None and tf.executing_eagerly():
                self._source._fed_to_function(iterates=False)
        return (self._elements,), (self.inside,)

    def __iter__(self) -> DistributedIterator:
        return self

    @as_written
    def __next__(self) -> Any:
        if not tf.executing_eagerly():
            return self.get_next()
        self._begin()
        batches = self._elements.fetch(self.inside)
        if not batches[0].has_value():
            raise StopIteration
        return self._marked(batches)

    @as_written
    def get_next(self) -> Any:
        """The next element; TensorFlow's OutOfRangeError at the end of the data."""
        self._begin()
        first = tf.experimental.Optional.from_value(self.inside.get_next())
        return self._marked((first, *self._elements.fetch(self.inside, 1)))

    @as_written
    def get_next_as_optional(self) -> OptionalElement:
        """The next element, if there is one. A `for` loop over an iterator inside a `tf.function` asks for it, too."""
        if self._follower is not None:
            self._follower.lose()
        return OptionalElement(self._elements, self._elements.fetch(self.inside))

    next = __next__

    def _begin(self) -> None:
        if self._follower is not None and tf.executing_eagerly() and self._follower.is_lost:
            self._follower.begin(self.inside)

    def _marked(self, batches: Sequence[Any]) -> Any:
        """The element of these batches. It knows which batch it is, if machines can make it."""
        element = self._elements.element(batches)
        if self._follower is not None and tf.executing_eagerly():
            drawn = self._follower.batch(tf.nest.flatten(batches[0].get_value()))
            if drawn is not None:
                mark(element, drawn)
        return element


@dataclass(frozen=True, eq=False)
class OptionalElement:
    """An element that may be missing, because the data has ended.

    >>> iterator = iter(DistributedDataset(tf.data.Dataset.range(2).batch(2), Elements(2)))
    >>> one, other = iterator.get_next_as_optional(), iterator.get_next_as_optional()
    >>> bool(one.has_value()), bool(other.has_value()), [part.numpy().tolist() for part in one.get_value().values]
    (True, False, [[0], [1]])
    """

    elements: Elements
    batches: tuple[Any, ...]

    def has_value(self, name: str | None = None) -> Any:
        """Whether there is an element, as a tensor."""
        return self.batches[0].has_value(name)

    @as_written
    def get_value(self, name: str | None = None) -> Any:
        """The element; TensorFlow's InvalidArgumentError if it is missing."""
        del name
        return self.elements.element(self.batches)

    @property
    def element_spec(self) -> Any:
        """The types and shapes of the element."""
        return self.elements.spec(self.batches[0].element_spec)


class DistributedDataset(_OfElements, tf.distribute.DistributedDataset):
    """A dataset of values of each replica.

    >>> batches = DistributedDataset(tf.data.Dataset.range(5).batch(3), Elements(2))
    >>> [[each.numpy().tolist() for each in element.values] for element in batches]
    [[[0, 1], [2]], [[3], [4]]]
    """

    def __init__(self, dataset: Any, elements: Elements, spec: ResourceSpec | None = None) -> None:
        self.inside = dataset
        """The dataset of batches."""
        self._elements = elements
        self._over = self._spec = spec
        """The machines which may run the dataset, until it is known whether they can."""
        self.pipeline: DataPipeline | None = None
        """The pipeline that machines run; None if the batches are fed."""
        self._told = False
        """Whether it was said that a traced function is fed."""

    def _fed_to_function(self, iterates: bool = True) -> None:
        """Say once that a traced function takes the batches, over several machines."""
        if self._over is not None and not self._told:
            say_fed_to_function(self._over, iterates)
        self._told = True

    def __tf_flatten__(self) -> tuple[Any, tuple[Any, ...]]:
        if tf.executing_eagerly():
            self._fed_to_function()
            # The dataset is becoming an argument of a traced function, whose iterator is made in the graph.
            read_by_pipeline(self.inside, self)
        return (self._elements,), (self.inside,)

    @property
    def cardinality(self) -> Any:
        """The number of elements; negative, as of a `tf.data.Dataset`, where it is infinite or unknown.

        >>> int(DistributedDataset(tf.data.Dataset.range(5), Elements(2, of_replicas=True)).cardinality)
        3
        """
        batches = self.inside.cardinality()
        return tf.where(batches < 0, batches, -(-batches // self._elements.batches))

    def __iter__(self) -> Any:
        if not tf.executing_eagerly():
            raise NotYetError(
                "iter(dataset) inside a tf.function is not supported. Write `for element in dataset:`, or make the "
                "iterator outside and pass it to the function, which calls next(iterator)."
            )
        spec, self._spec = self._spec, None
        if spec is not None:
            self.pipeline, self.inside = pipeline_of(self.inside, spec)
            if self.pipeline is not None:
                weakref.finalize(self, setattr, self.pipeline, "over", True)
        return DistributedIterator(iter(self.inside), self._elements, self)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Fold over the elements, as TensorFlow does for a `for` loop inside a `tf.function`."""
        if tf.executing_eagerly():
            state = initial_state
            for element in self:
                state = reduce_func(state, element)
            return state
        self._fed_to_function()
        iterator = iter(self.inside)

        def body(batches: Any, state: Any) -> Any:
            new = reduce_func(state, self._elements.element(batches))
            return self._elements.fetch(iterator), new

        _, state = tf.while_loop(
            lambda batches, _: batches[0].has_value(), body, (self._elements.fetch(iterator), initial_state),
            parallel_iterations=1,
        )
        return state
