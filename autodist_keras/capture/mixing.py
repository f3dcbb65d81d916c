"""Find the computations of a step that mix the examples of a batch. A replica can mix only its own examples.

In: a model and its traced step. Out: the findings of the static analysis, from which `mixing_notes.py` makes notes. For
a layer that returns `x - tf.reduce_mean(x, axis=0)`, the analysis finds one coupling::

    found.couplings[0].operation.type    # 'Mean'

While the step is traced, hooks record the operations of each metric. They also record the values that mix examples and
are right all the same: the losses as Keras reduces them (corrected in `losses.py`), and the statistics of batch
normalization, which have a note of their own. Afterwards `autodist_core.capture.batch_axis` follows the batch axis
through the traced step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import Traced, batch_axis, reached_from
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.metric_weights import metrics_of, with_contained

_HINGES = (keras.metrics.Hinge, keras.metrics.SquaredHinge)
_HINGE_FUNCTIONS = (keras.losses.hinge, keras.losses.squared_hinge)
STEPS_LOSS = "the step's loss"
"""What the notes call a loss that a step of the user's own makes."""


@dataclass(frozen=True)
class Asked:
    """A loss of which the analysis decides whether it is exact, and the words of the plan's note.

    >>> Asked("loss 'mse'", None).degree
    0
    """

    subject: str
    """What the note is about, such as `loss 'mse'`."""
    made: Any
    """The value before Keras reduces it."""
    degree: int | None = 0
    """The degree that is right for a sum. None if Keras does not reduce the loss: sums, means and equal values are."""
    one_number: str = ""
    """For one number of a batch: the note on a sum over the examples, and on a number that cannot be decided."""
    alike: str = (
        "number on every replica, and is added up over the replicas: for the loss of a whole batch, use "
        "reduction='sum_over_batch_size'"
    )
    """How the note goes on about values that are the same on every replica, and are added up."""
    by_itself: bool = False
    """Whether the value counts as it must, if it is a sum or a mean over the examples, or has a value for each."""
    by: tuple[Any, ...] = ()
    """The numbers of which the value is computed: the note names the first of them that is no mean or sum."""


@dataclass
class Seen:
    """The records of the hooks on a step, for the analysis that follows.

    >>> seen = Seen()
    >>> with tf.Graph().as_default() as graph:
    ...     total = tf.constant(0.0, name="total")
    ...     with seen.updating("accuracy"):
    ...         added = tf.add(total, total, name="added")
    >>> [(name, graph.get_operations()[first:last] == [added.op]) for graph, first, last, name in seen.metrics]
    [('accuracy', True)]
    """

    known: list[tuple[Any, batch_axis.Known]] = field(default_factory=list)
    """Tensors whose state the analysis need not find out, or finds by the states of others."""
    losses: set[str] = field(default_factory=set)
    """The names of the compiled losses."""
    reductions: list[tuple[Any, int]] = field(default_factory=list)
    """For each compiled loss, the graph and the number of its operations when the loss was reduced."""
    inexact: dict[str, str] = field(default_factory=dict)
    """The notes on losses that compare examples by their definition, by the name of the loss."""
    numbers: list[Any] = field(default_factory=list)
    """The terms of each number of a batch that counts as its terms do (see `sums.py`)."""
    asked: list[Asked] = field(default_factory=list)
    """The losses of which the analysis decides whether they are exact."""
    statistics: list[str] = field(default_factory=list)
    """The operations that make the statistics of batch normalization."""
    in_kernel: dict[str, None] = field(default_factory=dict)
    """The names of the layers that TensorFlow's kernel normalizes."""
    silent: list[tuple[Any, int, int]] = field(default_factory=list)
    """Operations that have a note of their own: a graph, and the first and the last one's position in it."""
    metrics: list[tuple[Any, int, int, str]] = field(default_factory=list)
    """The operations of a metric's update, named in the same way, and the metric's name."""

    def reduced(self, name: str, loss: Any) -> None:
        """Record a loss as Keras reduces it: its value is right."""
        self.losses.add(name)
        graph = tf.compat.v1.get_default_graph()
        self.reductions.append((graph, len(graph.get_operations())))
        if loss.shape.rank == 0:
            self.known.append((loss, batch_axis.Sum(0, loss.op)))

    def noted_elsewhere(self) -> AbstractContextManager[None]:
        """Record the operations that are traced in a block: they have a note of their own."""
        return _recorded_in(self.silent)

    def take_statistics(self, values: Sequence[Any]) -> None:
        """Record the statistics of batch normalization, which have a note of their own."""
        self.known += [(value, batch_axis.NO_CLAIM) for value in values]
        self.statistics += [value.op.name for value in values]

    @contextmanager
    def converting_labels(self, of: Any) -> Iterator[None]:
        """Record the choice that Keras's hinge functions make of all labels, if a block traces one of them.

        Labels of 0 and 1 become -1 and 1. A replica's labels may all be 1, and stay 1 in both cases.
        """
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        yield
        if isinstance(of, _HINGES) or vars(of).get("fn") in _HINGE_FUNCTIONS:
            made = graph.get_operations()[first:]
            self.known += [(operation.outputs[0], batch_axis.SAME) for operation in made if operation.type == "All"]

    def updating(self, metric: str) -> AbstractContextManager[None]:
        """Record the operations that are traced in a block: they are a metric's update."""
        return _recorded_in(self.metrics, metric)


@contextmanager
def _recorded_in(records: list[Any], *more: str) -> Iterator[None]:
    """Record the operations that are traced in a block: their graph, the first and the last one's position in it."""
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    yield
    records.append((graph, first, len(graph.get_operations()), *more))


@contextmanager
def watched(model: Any, trace: Any) -> Iterator[None]:
    """Record the operations of metrics and batch normalization while a step is traced.

    >>> from autodist_keras.capture.example import with_trace
    >>> model = keras.Sequential()
    >>> model.tracker = mean = keras.metrics.Mean(name="mean")
    >>> def step(trace):
    ...     with watched(model, trace):
    ...         mean.update_state(tf.constant(2.0))
    ...     print([name for _, _, _, name in trace.seen.metrics])
    ...     return trace.total
    >>> _ = with_trace(step)
    ['mean']
    """
    with ExitStack() as hooks:
        for metric in with_contained(metrics_of(model)):
            if not getattr(metric, "metrics", ()):
                hooks.enter_context(hook(metric, "update_state", _recorded(metric, trace.seen)))
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized:
                hooks.enter_context(hook(layer, "_moments", _moments_known(layer._moments, trace.seen)))
        yield


def _recorded(metric: Any, seen: Seen) -> Any:
    update_state = metric.update_state

    def hooked(*arguments: Any, **named: Any) -> Any:
        with seen.updating(metric.name), seen.converting_labels(metric):
            return update_state(*arguments, **named)

    return hooked


def _moments_known(moments: Any, seen: Seen) -> Any:
    def hooked(*arguments: Any, **named: Any) -> Any:
        with seen.noted_elsewhere():
            found = moments(*arguments, **named)
        seen.take_statistics(found)
        return found

    return hooked


def followed(traced: Traced, seen: Seen, known: Mapping[int, batch_axis.Known]) -> batch_axis.Found:
    """What the batch axis tells of a traced step; `known` has states besides those of the records, by tensor id.

    >>> from autodist_core.capture.example import example_traced
    >>> def centred(x, kernel):
    ...     return tf.reduce_mean((x - tf.reduce_mean(x, axis=0, name="middle")) @ kernel)
    >>> found = followed(example_traced(loss_of=centred), Seen(), {})
    >>> [coupling.operation.name for coupling in found.couplings]
    ['middle']
    """
    return batch_axis.follow(traced, {**known, **{id(tensor): state for tensor, state in seen.known}})


def numbers_behind(value: Any, seen: Seen) -> tuple[Any, ...]:
    """The numbers of which a number is computed, in the order of the graph, without those of a known state.

    >>> with tf.Graph().as_default():
    ...     mean = tf.reduce_mean(tf.constant([1.0, 3.0]))
    ...     [number.op.type for number in numbers_behind(2 * tf.sqrt(mean), Seen())]
    ['Mean', 'Sqrt', 'Const', 'Mul']
    """
    known = {id(tensor) for tensor, _ in seen.known}

    def made_of(tensors: Iterable[Any]) -> Iterator[Any]:
        return (each.op for each in tensors if each.shape.rank == 0 and id(each) not in known)

    reached = reached_from(made_of([value]), lambda operation: made_of(operation.inputs))
    made = (operation for operation in value.graph.get_operations() if operation.name in reached)
    return tuple(tensor for operation in made for tensor in operation.outputs)
