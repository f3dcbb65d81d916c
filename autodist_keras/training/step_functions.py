"""The train, test and predict functions that Keras's own loops call. Each runs one distributed step for each batch.

In: the batches that a loop hands over. Out: the results of the step for the whole batch. A `StepFunction` captures the
model's step (`capture/tracing.py`) for each kind of batch, and runs it in a `Training` (see
`autodist_core.training.steps`).
`on_iterator` and `on_batches` make a function with the parameters that Keras's loop passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import keras
import tensorflow as tf

from autodist_core.errors import REFUSED, CaptureError
from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import Placement
from autodist_core.reports.tried import tried
from autodist_core.runtime import COMPOSITE, Timings
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.training import Steps, Training, TrainingState, raise_in_words
from autodist_keras.capture.hooks import undone_if_refused
from autodist_keras.capture.optimizers import unbuilt_optimizers
from autodist_keras.capture.required import require_one_axis, require_rows
from autodist_keras.capture.tracing import CapturedStep, trace_step
from autodist_keras.seams import LOOP_ITERATES
from autodist_keras.training.batches import Batch, BatchIterator, read_batch

SIZED = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 16)
"""Whether Keras traces a step for the size of the first batch, and once more for all others: since 3.16."""


class StepFunction:
    """A Keras step function over all replicas. It is captured for each kind of batch, and then run.

    >>> from autodist_core.resource_spec import ResourceSpec
    >>> from autodist_core.training import Settings
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
    >>> model.compile("sgd", "mse")
    >>> training = Training(Settings(ResourceSpec.local(cpus=2), "PS"))
    >>> predict = StepFunction(model, model.predict_step, True, training, lambda captured: None)
    >>> predict((tf.zeros((5, 3)),)).shape.as_list()
    [5, 1]
    >>> training.close()
    """

    def __init__(
        self, model: Any, step: Callable[[Any], Any], concat: bool, training: Training,
        say: Callable[[CapturedStep], None],
    ) -> None:
        def steps(step: Callable[[Any], Any]) -> Steps[Batch, CapturedStep]:
            def capture(batch: Batch, specs: Sequence[Any]) -> CapturedStep:
                captured = trace_step(
                    model, step, batch.structure, specs, concat, training.settings.fuses, training.draws_as_one
                )
                # A batch of one example is not divided.
                require_one_axis(captured.along_two_axes if training.settings.replicas > 1 < batch.total else ())
                if training.settings.replicas == 1:
                    return captured
                variables = {entry.spec.name: entry.tf_variable for entry in captured.entries}
                reported = tried(captured.item, captured.notes.reported, variables, batch.arrays, batch.total)
                return replace(captured, notes=replace(captured.notes, reported=reported))

            return Steps(capture, training, admitted, say)

        self._model, self._training, self._made_of, self._steps = model, training, steps, steps(step)
        self.before_next: Callable[[], None] | None = None
        """What runs once, when the next step is captured and all its variables exist, and before that step runs."""
        self.timings: Timings | None = None
        """What is told how long the next batches take to come, where somebody measures."""
        self.examples = self.steps = 0
        """How many steps there were, and how many examples they have had."""
        self._feed, self._aside = NO_FEED, False
        self.drops_aside: Callable[[], bool] = lambda: False
        """Whether a thread may drop an iterator: it runs nothing that the user's program may run meanwhile."""

    def feed(self, iterator: Any) -> Feed:
        """The feed of the iterator that Keras hands over. The iterator of the epoch before is dropped."""
        if self._feed.iterator is not iterator:
            self.drop_data()
            self._feed, self._aside = feed_of(iterator), self.drops_aside()
        return self._feed

    def drop_data(self) -> None:
        """Drop the iterator, in a thread if that may be: TensorFlow's destructor waits for the pipeline's tuning.

        The thread that tunes sleeps for periods that become longer, and sometimes misses that it should end.
        """
        last, self._feed = [self._feed], NO_FEED
        if self._aside and last[0] is not NO_FEED:
            with defer_interrupt(), suppress(RuntimeError):  # no thread can start, as when the program ends
                threading.Thread(target=last.clear, name="autodist-drops-data").start()

    def trace_anew(self, step: Callable[[Any], Any]) -> None:
        """Forget what was captured: the next batch captures this step, which is the model's now."""
        self._steps = self._made_of(step)

    def say_again(self) -> None:
        """Say after the next step how its batch is divided and what travels, unless this was said before."""
        self._steps.say_again()

    @property
    def captured(self) -> CapturedStep | None:
        """The first captured step."""
        return self._steps.captured

    def captured_for(self, batch: Batch, keep: bool = False, same_size: bool = False) -> CapturedStep:
        """The step, captured for batches like this one; nothing runs. With `keep`, the first batch may use it."""
        with undone_if_refused(*unbuilt_optimizers(self._model)):
            return self._steps.capture(batch, keep, same_size)

    def __call__(self, data: Any, same_size: bool = False) -> Any:
        """Run the step on one batch; return the results of the step for the whole batch (see `Steps`)."""
        batch = read_batch(data)
        if self._training.settings.replicas == 1:
            same_size |= SIZED and self._model.steps_per_execution == 1
        if self.before_next is not None or self.captured is None:
            with undone_if_refused(*unbuilt_optimizers(self._model)):
                self._steps.prepare(batch, same_size)
            if self.before_next is not None:
                before_next, self.before_next = self.before_next, None
                before_next()
        try:
            captured, outputs = self._steps.run(batch, same_size)
        except tf.errors.OpError as error:
            failed = self._steps.found(batch)
            if failed is None:
                raise
            require_rows(failed.item, str(error))
            raise_in_words(error, failed.lines, failed.owner, self._training, failed.notes.trained)
        self.examples += batch.total
        self.steps += 1
        return captured.rebuild(outputs)

    def without_data(self, iterator: Any) -> None:
        """Trace the step without a batch, as Keras does, so that the metrics exist when Keras asks for them."""
        # Public: an iterator of tf.data has the specs of its batches, and a generator has none.
        specs = keras.tree.flatten(getattr(iterator, "element_spec", None))
        known = all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs)
        if self.captured is None and known:
            self.captured_for(read_batch(keras.tree.map_structure(_one_of_zeros, iterator.element_spec)))


def _one_of_zeros(spec: tf.TensorSpec) -> Any:
    return tf.zeros([size or 1 for size in spec.shape.as_list()], spec.dtype)


@dataclass(frozen=True)
class Feed:
    """An iterator that Keras hands over, and how its next batch is fetched.

    >>> numbers = iter([3, 4])
    >>> Feed(numbers, lambda: next(numbers)).fetch()
    3
    """

    iterator: Any
    fetch: Callable[[], Any]
    same_size: bool = True
    """Whether all batches have equally many examples."""


NO_FEED = Feed(None, lambda: None)


def feed_of(iterator: Any) -> Feed:
    """The feed of an iterator. An iterator of tf.data is asked in a graph, as Keras asks it.

    An eager call would convert the shapes of the data's specs with calls to Python. Ctrl-C interrupts such a call, and
    TensorFlow then ends the process, because a shape is half read.

    >>> feed_of(iter([1, 2])).fetch()
    1
    >>> feed_of(iter(tf.data.Dataset.range(5).batch(2))).same_size
    False
    """
    if isinstance(iterator, BatchIterator):
        inner = feed_of(iterator.inner)
        return Feed(iterator, lambda: iterator.next_of(inner.fetch), inner.same_size)
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

    >>> class Ten:
    ...     timings, feed = None, staticmethod(feed_of)
    ...     def __call__(self, batch, same_size):
    ...         return 10 * batch
    >>> run = on_iterator(Ten(), keras.Sequential())
    >>> run(iter([1, 2]))
    10
    """
    def run(iterator: Any) -> Any:
        if not isinstance(iterator, Iterator):
            raise LOOP_ITERATES.error(f"it was a {type(iterator).__name__}")
        feed = function.feed(iterator)
        fetch = feed.fetch if function.timings is None else function.timings.fetching(feed.fetch)
        outputs, ran = None, False
        for _ in range(model.steps_per_execution):
            try:
                data = fetch()
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
        results = [keras.tree.map_structure(_as_tensor, function(data)) for data in batches]
        if len(results) == 1:
            return results[0]
        return keras.tree.map_structure(lambda *parts: _one_behind_the_other(parts), *results)

    return run


def _as_tensor(value: Any) -> Any:
    return value if isinstance(value, COMPOSITE) else tf.convert_to_tensor(value)


def _one_behind_the_other(parts: Sequence[Any]) -> Any:
    sparse = isinstance(parts[0], tf.SparseTensor)
    return tf.sparse.concat(0, parts) if sparse else tf.concat(parts, axis=0)


def admitted(state: TrainingState, item: GraphItem) -> GraphItem:
    """The step, unless it is refused.

    >>> from autodist_core.runtime.example import example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> admitted(TrainingState(session), train.item) is train.item
    True
    >>> session.close()
    """
    step, placement = StepIndex.of(item), state.session.placement
    if item.gradients or step.occurrences:
        return item
    placed = placement.owner_of.keys() | placement.parts.keys()
    for name in sorted(step.written_by_compute & placed):
        if not _is_written_whole(placement, name):
            raise CaptureError(
                f"{REFUSED}trained variable {name!r} is written by a step without an optimizer, as evaluate and "
                "predict run it, and a server has the variable. Let the layer write it only if training=True, or use "
                "strategy='AllReduce' with share_memory=False."
            )
    return item


def _is_written_whole(placement: Placement, name: str) -> bool:
    """Whether the replicas' writes reach all copies, each once."""
    if name in placement.parts:
        return False
    owner = placement.owner(placement.owner_of[name])
    only = len(placement.replicas) == 1 and placement.mirror(name, placement.replicas[0])
    return owner.replica is not None or only == placement.owned_copy(name, owner)
