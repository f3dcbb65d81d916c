"""Correct losses that are not means over examples, while the step is traced.

In: a model, and the `Trace` of a step. Out: hooks on the compiled losses and on `add_loss` terms, and notes for the
plan. `tracing.py` opens the hooks for the time of the trace. `metric_weights.py` does the same for metrics.

Replica r's loss counts n_r/N. That is right for every mean over examples. If Keras reduces a loss in another way, the
replica's value is multiplied by a factor, so that the weighted sum over the replicas is the whole batch's value:

- a sum over examples by N / n_r;
- a mean over a mask or over sample weights by N / n_r times the replica's part of the mask's or the weights' sum.

A loss that is not reduced (`reduction=None`) has no factor. The tape adds its values up: the gradient is a sum over
examples, and the sum over the replicas is the whole batch's gradient. If its values are of no single example (each
replica has those of the whole batch, or means over its examples), the gradient counts n_r/N. With one replica the
factor is exactly 1. The logged loss is the same number. A number that a user's code makes of the batch itself counts as
what it is, a sum or a mean (`sums.py`). For a loss of `reduction="sum"` the graph of a step has::

    loss = Sum(losses)          # as Keras reduces it
    corrected = loss * (total / examples)
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import Counted
from autodist_core.capture.batch_axis import SAME, Linear, State, Sum
from autodist_core.reports.reasons import Reason
from autodist_keras import seams
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.mixing import STEPS_LOSS, Asked, Seen, numbers_behind
from autodist_keras.capture.sums import counted, looks_at_examples

_UNREDUCED = ("none", None)
_OWN = (
    "how {}, the model's own, makes its loss of the examples is not known: it counts as a mean over them; give it a "
    "sum or a mean over the examples"
)
_COUPLED = "not exact: loss {!r} compares the examples of a batch with each other, and a replica only its own"
_COUPLING = (keras.losses.Circle, keras.losses.Dice, keras.losses.Tversky)
_ONE_NUMBER = (
    "how {} makes one number of the examples is not known: it counts as a mean over them; for another one, {} a value "
    "for each example"
)
_TERM = "an add_loss term"
_ADDED_ALIKE = "on every replica, and is added up over the replicas: add its sum as one number"


@dataclass
class Losses:
    """What the hooks record of the losses of one trace.

    >>> Losses().reduced
    False
    """

    unweighted: list[tuple[Any, Any]] = field(default_factory=list)
    """The losses of several values that `scale_loss` got, each with one of the tensors where its gradient begins."""
    scaled: list[Any] = field(default_factory=list)
    """What the step gets for the losses that it gives to `scale_loss`, and differentiates."""
    reduced: bool = False
    """Whether the step asked a compiled loss for one number. Keras reduced that loss, and it was corrected."""
    own_note: str = ""
    """The plan's note on a model that has a training step or a loss of its own."""
    expected: bool = False
    """Whether there are compiled losses to correct."""
    asked: bool = False
    """Whether the step asked one of the compiled losses."""

    def counted(self, state_of: Callable[[Any], State]) -> dict[str, Counted]:
        """How the losses count of which each value is of the batch, and of no single example, where gradients begin."""
        return {
            begin.op.name: Counted(0, begin.dtype, 1) for loss, begin in self.unweighted for state in [state_of(loss)]
            if state == SAME or (isinstance(state, Linear) and state.degree == 0)
        }


def weighted(loss: Any, trace: Any) -> Any:
    """A loss whose gradient is multiplied by this replica's share; by 1 if the loss has a value for each example.

    The value of the loss stays: a step may log the loss that it differentiates. The gradient of values that are of no
    single example, such as those of the whole batch on every replica, is multiplied later (see `Losses.counted`).

    >>> from autodist_keras.capture.example import with_trace
    >>> def step(trace):
    ...     kernel = tf.constant(2.0)
    ...     with tf.GradientTape() as tape:
    ...         tape.watch(kernel)
    ...         loss = weighted(kernel * kernel, trace)
    ...     return loss, tape.gradient(loss, kernel)
    >>> with_trace(step)
    (4.0, 3.0)
    """
    given = loss
    summed = loss if trace.recording is None else counted(loss, trace)
    _ask_of_step(summed, trace)
    if summed is not loss:
        loss = summed + tf.stop_gradient(loss - summed)
    share = None if loss.shape.rank else _by_rank(loss, trace.share(loss.dtype), 1.0)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def weighing(value: Any) -> Any:
        def backward(upstream: Any) -> Any:
            trace.weighting.append(tf.identity(upstream) if share is None else upstream * share)
            if share is None:
                trace.losses.unweighted.append((given, trace.weighting[-1]))
            return trace.weighting[-1]

        return tf.identity(value), backward

    trace.losses.scaled.append(weighing(loss))
    return trace.losses.scaled[-1]


def require_asked(model: Any, step: Any, trace: Any) -> None:
    """Raise a SeamError if Keras's own step did not ask the compiled losses, in which the correction is made.

    >>> from types import SimpleNamespace
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> require_asked(model, model.train_step, SimpleNamespace(losses=Losses(expected=True, asked=True)))
    >>> require_asked(model, model.train_step, SimpleNamespace(losses=Losses(expected=True)))
    Traceback (most recent call last):
    autodist_core.errors.SeamError: Keras ... (a step computed its loss without them), ...
    """
    own_step = getattr(step, "__func__", None) in (keras.Model.train_step, keras.Model.test_step)
    if own_step and not _own_methods(model) and trace.losses.expected and not trace.losses.asked:
        raise seams.LOSSES_ARE_ASKED.error("a step computed its loss without them")


def _own_methods(model: Any) -> list[str]:
    """The methods of the model's own that make its loss."""
    names = ("train_step", "compute_loss")
    return [name for name in names if getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)]


@contextmanager
def corrected(model: Any, trace: Any) -> Iterator[None]:
    """Correct the compiled losses and the per-example `add_loss` terms of a model.

    >>> from autodist_keras.capture.example import with_trace
    >>> model = keras.Sequential([keras.Input((1,))])
    >>> model.compile(loss=keras.losses.MeanSquaredError(reduction="sum"))
    >>> y = tf.constant([[1.0], [2.0], [2.0]])
    >>> float(model.compute_loss(y=y, y_pred=0.0 * y))
    9.0
    >>> def step(trace):
    ...     with corrected(model, trace):
    ...         return model.compute_loss(y=y, y_pred=0.0 * y)
    >>> with_trace(step)
    12.0
    """
    compile_loss = model._compile_loss
    own = _own_methods(model)
    trace.losses.own_note = _OWN.format(own[0]) if own else ""
    with ExitStack() as hooks:
        if compile_loss is not None and compile_loss.built:
            trace.losses.expected = bool(compile_loss._flat_losses)
            flat = [entry._replace(loss=_Corrected(entry.loss, trace)) for entry in compile_loss._flat_losses]
            hooks.enter_context(hook(compile_loss, "_flat_losses", flat))
            hooks.enter_context(hook(compile_loss, "call", _summed(compile_loss.call, trace.seen)))
        hooks.enter_context(hook(model, "_aggregate_additional_loss", _added(model._aggregate_additional_loss, trace)))
        if "compute_loss" in own:
            hooks.enter_context(hook(model, "compute_loss", _own(model.compute_loss, trace)))
        yield


def _summed(call: Any, seen: Seen) -> Any:
    """Keras's sum of the compiled losses. It mixes no examples, though one number is added to values of examples.

    The tape adds the values of all examples up. So does it with the number, once for each example of a replica.
    """

    def hooked(*arguments: Any, **named: Any) -> Any:
        before = len(seen.reductions)
        total = call(*arguments, **named)
        if len(seen.reductions) > before:
            graph, first = seen.reductions[-1]
            seen.silent.append((graph, first, len(graph.get_operations())))
        return total

    return hooked


class _Corrected:
    """A compiled loss, multiplied by its factor."""

    def __init__(self, loss: Any, trace: Any) -> None:
        self._loss = loss
        self._trace = trace

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with ExitStack() as corrected:
            if isinstance(self._loss, _COUPLING):
                corrected.enter_context(self._trace.seen.noted_elsewhere())
            value = self._reduced(y_true, y_pred, sample_weight, corrected)
        self._trace.seen.reduced(self._loss.name, value)
        return value

    def _reduced(self, y_true: Any, y_pred: Any, sample_weight: Any, corrected: ExitStack) -> Any:
        """The loss, multiplied by its factor. Operations on the examples' losses go into the `corrected` block."""
        seen: dict[str, Any] = {}
        call, trace, mask_of = self._loss.call, self._trace, seams.GET_MASK.get()
        trace.losses.asked = True

        def recording_call(y_true: Any, y_pred: Any) -> Any:
            with trace.seen.converting_labels(self._loss):
                losses = call(y_true, y_pred)
            if not hasattr(losses, "shape"):
                losses = keras.ops.convert_to_tensor(losses, dtype=self._loss.dtype)  # a number, as Keras converts it
            is_unweighted = sample_weight is None and isinstance(losses, tf.Tensor)
            if is_unweighted and losses.shape.rank and losses.shape.num_elements() == 1:
                losses = tf.reshape(losses, [])  # a sum that keeps its axes: the number of examples is never known
            losses = counted(losses, trace)
            seen.update(losses=losses, mask=mask_of(losses))
            corrected.enter_context(trace.seen.noted_elsewhere())
            return losses

        mask = mask_of(y_pred)
        with hook(self._loss, "call", recording_call):
            value = self._loss(y_true, y_pred, sample_weight)
        if "losses" not in seen:
            if type(self._loss).__call__ is keras.losses.Loss.__call__:
                raise seams.LOSS_CALLS.error(f"{type(self._loss).__name__} computed a value without it")
            # A loss with a __call__ of its own may have no `call`.
            value = counted(value, trace)
            self._ask(value, None if value.shape.rank else 0)
            return value
        trace.losses.reduced |= value.shape.rank == 0
        one_number = seen["losses"].shape.rank == 0
        if isinstance(self._loss, _COUPLING) and (one_number or isinstance(self._loss, keras.losses.Circle)):
            note = Reason.of(_COUPLED.format(self._loss.name), [seen["losses"].op.name])
            trace.seen.inexact[self._loss.name] = note
        else:
            unreduced = not one_number and self._loss.reduction in _UNREDUCED
            degree = None if unreduced else int(not one_number and self._loss.reduction == "sum")
            self._ask(seen["losses"], degree)
        if one_number:
            return value if sample_weight is None else self._of_weighted_scalar(value, seen["losses"], sample_weight)
        masks = [m for m in (mask, seen["mask"]) if m is not None]
        factor = self._factor(masks, sample_weight, value.dtype)
        return value if factor is None else value * factor

    def _ask(self, made: Any, degree: int | None) -> None:
        one_number = _ONE_NUMBER.format(f"loss {self._loss.name!r}", "return") if made.shape.rank == 0 else ""
        self._trace.seen.asked.append(Asked(f"loss {self._loss.name!r}", made, degree, one_number))

    def _of_weighted_scalar(self, value: Any, loss: Any, sample_weight: Any) -> Any:
        """Correct the loss of predictions of rank 1: one number, which Keras multiplies by every weight and reduces."""
        reduction, trace = self._loss.reduction, self._trace
        weights = tf.cast(sample_weight, tf.float64)
        mass, size = tf.reduce_sum(weights), tf.cast(tf.size(weights), tf.float64)
        total = trace.sum_over_replicas(mass)
        # The factors with which Keras multiplies the loss: on this replica (`own`) and on one device (`single`).
        if reduction == "mean_with_sample_weight":
            own, single = tf.math.divide_no_nan(mass, mass), tf.math.divide_no_nan(total, total)
        elif reduction == "sum":
            own, single = mass, total
        elif reduction in _UNREDUCED:
            own, single = mass, total * trace.share(tf.float64)
        else:
            own, single = mass / size, total / trace.sum_over_replicas(size)
        scaled = value * tf.cast(tf.math.divide_no_nan(single, own), value.dtype)
        weightless = single / size if reduction in _UNREDUCED else single
        return tf.where(tf.equal(own, 0.0), loss * tf.cast(weightless, loss.dtype), scaled)

    def _factor(self, masks: list[Any], sample_weight: Any, dtype: Any) -> Any:
        reduction, trace = self._loss.reduction, self._trace
        if reduction in _UNREDUCED:
            return None
        if reduction == "sum":
            return trace.inverse_share(dtype)
        weights = sample_weight if reduction == "mean_with_sample_weight" else None
        if weights is None and not masks:
            return None
        mass = _mass(masks, weights)
        part = tf.math.divide_no_nan(mass, trace.sum_over_replicas(mass))
        return tf.cast(trace.inverse_share(tf.float64) * part, dtype)


def _mass(masks: list[Any], weights: Any) -> Any:
    """The sum of the masks, of the sample weights, or of the weights times the masks."""
    parts = [tf.cast(part, tf.float64) for part in (*masks, weights) if part is not None]
    rank = max(part.shape.rank for part in parts)
    for at, part in enumerate(parts):
        for _ in range(rank - part.shape.rank):
            parts[at] = tf.expand_dims(parts[at], -1)
    return tf.reduce_sum(reduce(tf.multiply, parts))


def _own(compute_loss: Any, trace: Any) -> Any:
    """A `compute_loss` of the user's own, of whose value the analysis decides how it counts, and whether it is exact.

    A training step of the user's own may compute with the value: it gets it as it is (see `own_losses.py`).
    """

    def hooked(*arguments: Any, **named: Any) -> Any:
        loss = compute_loss(*arguments, **named)
        if trace.recording is None:
            loss = counted(loss, trace)
            _ask_of_step(loss, trace)
        return loss

    return hooked


def _ask_of_step(loss: Any, trace: Any) -> None:
    """Let the analysis decide on one number that a step makes, if the step made it of other numbers by itself."""
    seen = trace.seen
    of_step = tf.is_symbolic_tensor(loss) and loss.shape.rank == 0 and loss.graph is trace.graph
    noted = [*(each.made for each in seen.asked), *(tensor for tensor, _ in seen.known)]
    if of_step and all(each is not loss for each in noted):
        note, numbers = trace.losses.own_note, numbers_behind(loss, seen)
        seen.asked.append(Asked(STEPS_LOSS, loss, one_number=note, by=numbers))


def _added(aggregate: Any, trace: Any) -> Any:
    """Keras's sum of an `add_loss` term, corrected. A term with a value for each example is added up.

    One number counts as what it is, and the values of no single example count as a mean.
    """

    def hooked(loss: Any) -> Any:
        of_examples = tf.is_symbolic_tensor(loss) and looks_at_examples(loss)
        if loss.shape.rank is None:
            value, asked = aggregate(loss * _by_rank(loss, 1.0, trace.inverse_share(loss.dtype))), loss
        elif loss.shape.rank > 0 and loss.shape[0] is None:
            trace.seen.asked.append(Asked(_TERM, loss, 1, alike=_ADDED_ALIKE))
            value, asked = aggregate(loss * trace.inverse_share(loss.dtype)), None
        elif loss.shape.rank == 0:
            asked = counted(loss, trace) if of_examples else loss
            value = aggregate(asked)
        else:
            value = asked = counted(aggregate(loss), trace) if of_examples else aggregate(loss)
        if of_examples and asked is not None:
            note, numbers = _ONE_NUMBER.format(_TERM, "add"), numbers_behind(asked, trace.seen)
            trace.seen.asked.append(Asked(_TERM, asked, one_number=note, by=numbers))
        if of_examples:
            trace.seen.known.append((value, Sum(0, value.op)))
        return value

    return hooked


def _by_rank(loss: Any, of_scalar: Any, of_examples: Any) -> Any:
    """One factor for a loss that is a scalar, and another for a loss that has a value for each example.

    If the rank is not known during the trace, the step itself decides.
    """
    if loss.shape.rank is not None:
        return of_examples if loss.shape.rank else of_scalar
    scalar, examples = (tf.cast(factor, loss.dtype) for factor in (of_scalar, of_examples))
    return tf.where(tf.equal(tf.rank(loss), 0), scalar, examples)

