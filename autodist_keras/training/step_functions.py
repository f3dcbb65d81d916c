"""The train, test and predict functions that Keras's own loops call. Each runs one distributed step for each batch.

In: the batches that a loop hands over. Out: the results of the step for the whole batch. A `StepFunction` captures the
model's step for the first batch of a kind (`capture/tracing.py`), adds the captured step to the session, and runs it.
`on_iterator` and `on_batches` make a function with the parameters that Keras's loop passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import keras
import tensorflow as tf

from autodist_core.runtime import SessionStep
from autodist_core.step.graph_item import GraphItem
from autodist_core.training import State
from autodist_keras.capture.tracing import CapturedStep, trace_step
from autodist_keras.seams import LOOP_ITERATES
from autodist_keras.training.batches import Batch, read_batch

_log = logging.getLogger("autodist")


class StepFunction:
    """A Keras step function over all replicas. It is captured for each kind of batch, and then run."""

    def __init__(
        self, model: Any, step: Callable[[Any], Any], concat: bool, open_session: Callable[[GraphItem], State],
        fused_updates: bool = False, alone: bool = False,
    ) -> None:
        self._model = model
        self._step = step
        self._concat = concat
        self._open_session = open_session
        self._fused_updates = fused_updates
        self._alone = alone
        """Whether there is one replica. Its slice is then the batch."""
        self._known: dict[
            tuple[Any, ...], list[tuple[tuple[tf.TensorSpec, ...], SessionStep, Callable[..., Any]]]
        ] = {}
        self.captured: CapturedStep | None = None
        self._mentioned = False

    def capture(self, batch: Batch, specs: Sequence[tf.TensorSpec]) -> CapturedStep:
        """Capture the step for batches like this one."""
        return trace_step(self._model, self._step, batch.structure, specs, self._concat, self._fused_updates)

    def __call__(self, data: Any, same_size: bool = False) -> Any:
        """Run the step on one batch; return the results of the step for the whole batch.

        `same_size` says that other batches have as many examples. As with Keras, the first such size gets a graph of
        its own. In that graph TensorFlow computes the values that depend on the size in advance, and rounds so.
        """
        batch = read_batch(data)
        step, rebuild = self._step_for(batch, same_size)
        state = self.state
        self._mention_idle(batch.total, len(state.session.placement.replicas))
        state.before_step()
        try:
            outputs = step(batch.arrays, batch.total)
        finally:
            state.end_step()
        state.after_step()
        return rebuild(outputs)

    def _mention_idle(self, total: int, replicas: int) -> None:
        # The first batch decides: a small last batch of an epoch needs no warning.
        if not self._mentioned and total < replicas:
            _log.warning(
                "A batch of %d examples leaves %d of %d replicas idle; larger batches keep them all busy.",
                total, replicas - total, replicas,
            )
        self._mentioned = True

    def specs_for(self, batch: Batch, known: tuple[tf.TensorSpec, ...] | None = None) -> tuple[tf.TensorSpec, ...]:
        """The batch's specs with a dynamic batch axis. Axes in which the batch differs from `known` are dynamic too."""
        return tuple(_dynamic(spec, seen) for spec, seen in zip(batch.specs, known or batch.specs, strict=True))

    def without_data(self, iterator: Any) -> None:
        """Trace the step without a batch, as Keras does, so that the metrics exist when Keras asks for them."""
        # Public: an iterator of tf.data has the specs of its batches, and a generator has none.
        specs = keras.tree.flatten(getattr(iterator, "element_spec", None))
        if self._known or not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs):
            return
        batch = read_batch(keras.tree.map_structure(_one_of_zeros, iterator.element_spec))
        self.capture(batch, self.specs_for(batch))

    def _step_for(self, batch: Batch, same_size: bool) -> tuple[SessionStep, Callable[..., Any]]:
        alternatives = self._known.get(batch.signature, [])
        for specs, step, rebuild in alternatives:
            if all(spec.shape.is_compatible_with(seen.shape) for spec, seen in zip(specs, batch.specs, strict=True)):
                return step, rebuild
        # The last alternative is the most general one.
        return self._add_step(batch, alternatives[-1][0] if alternatives else None, same_size)

    def _add_step(
        self, batch: Batch, known: tuple[tf.TensorSpec, ...] | None, same_size: bool
    ) -> tuple[SessionStep, Callable[..., Any]]:
        """Capture the step for this batch. Axes in which the batch differs from earlier batches become dynamic.

        If all batches have the same size, the step of a single replica is captured with the sizes that Keras would use.
        """
        same_size = same_size and not (self._alone and known)
        specs = batch.specs if same_size and self._alone else self.specs_for(batch, known)
        captured = self.capture(batch, specs)
        # `captured` is stored only after this call: it may refuse the step.
        self.state = self._open_session(captured.item)
        self.captured = self.captured or captured
        step = self.state.session.add(captured.item, batch.total if same_size else None)
        self.state.watch(captured.entries)
        self._known.setdefault(batch.signature, []).append((specs, step, captured.rebuild))
        return step, captured.rebuild


def _one_of_zeros(spec: tf.TensorSpec) -> Any:
    return tf.zeros([size or 1 for size in spec.shape.as_list()], spec.dtype)


def _dynamic(spec: tf.TensorSpec, seen: tf.TensorSpec) -> tf.TensorSpec:
    if not spec.shape.rank:
        return spec
    axes = [None] + [
        size if size == other else None
        for size, other in zip(spec.shape.as_list()[1:], seen.shape.as_list()[1:], strict=True)
    ]
    return tf.TensorSpec(axes, spec.dtype)


@dataclass(frozen=True)
class Feed:
    """An iterator that Keras hands over, and how its next batch is fetched."""

    iterator: Any
    fetch: Callable[[], Any]
    same_size: bool = True
    """Whether all batches have equally many examples."""


def feed_of(iterator: Any) -> Feed:
    """The feed of an iterator. An iterator of tf.data is asked in a graph, as Keras asks it.

    An eager call would convert the shapes of the data's specs with calls to Python. Ctrl-C interrupts such a call, and
    TensorFlow then ends the process, because a shape is half read.

    >>> feed_of(iter([1, 2])).fetch()
    1
    >>> feed_of(iter(tf.data.Dataset.range(5).batch(2))).same_size
    False
    """
    if not isinstance(iterator, tf.data.Iterator):
        return Feed(iterator, partial(next, iterator))
    fetch = partial(_get_next(tf.type_spec_from_value(iterator)), *_tensors(iterator))
    # Public: the specs of tensors have shapes, and those of a missing part have none.
    shapes = [getattr(spec, "shape", tf.TensorShape([])) for spec in keras.tree.flatten(iterator.element_spec)]
    return Feed(iterator, fetch, all(shape.rank == 0 or (shape.rank and shape[0]) for shape in shapes))


@lru_cache(maxsize=16)
def _get_next(spec: Any) -> Callable[..., Any]:
    """A graph that fetches a batch from iterators of one type, given an iterator's tensors: the cheapest way."""
    function = tf.function(
        lambda *tensors: tf.nest.pack_sequence_as(spec, tensors, expand_composites=True).get_next(), autograph=False
    )
    return function.get_concrete_function(*_tensors(spec))


def _tensors(iterator: Any) -> list[Any]:
    return tf.nest.flatten(iterator, expand_composites=True)


def on_iterator(function: StepFunction, model: Any) -> Callable[[Any], Any]:
    """A function as Keras calls train and test functions: with an iterator, for `steps_per_execution` batches.

    >>> run = on_iterator(lambda batch, same_size: 10 * batch, keras.Sequential())
    >>> run(iter([1, 2]))
    10
    """
    feed = Feed(None, lambda: None)

    def run(iterator: Any) -> Any:
        nonlocal feed
        if feed.iterator is not iterator:
            if not isinstance(iterator, Iterator):
                raise LOOP_ITERATES.error(f"it was a {type(iterator).__name__}")
            feed = feed_of(iterator)
        outputs, ran = None, False
        for _ in range(model.steps_per_execution):
            try:
                data = feed.fetch()
            except (StopIteration, tf.errors.OutOfRangeError):
                if ran:
                    return outputs
                function.without_data(feed.iterator)
                raise StopIteration from None
            outputs, ran = function(data, feed.same_size), True
        return outputs

    return run


def on_batches(function: StepFunction) -> Callable[[Any], Any]:
    """A function as Keras calls predict functions: with a list of batches.

    >>> on_batches(lambda batch: batch[0])([(tf.zeros((2, 1)),), (tf.ones((1, 1)),)]).numpy().tolist()
    [[0.0], [0.0], [1.0]]
    """

    def run(batches: Sequence[Any]) -> Any:
        results = [keras.tree.map_structure(tf.convert_to_tensor, function(data)) for data in batches]
        if len(results) == 1:
            return results[0]
        return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), *results)

    return run
