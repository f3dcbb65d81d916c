"""Losses that are no means over examples, corrected while the step is traced.

Replica r's loss counts n_r/N. That is right for every mean over examples. Where Keras reduces a loss in another way,
the replica's value is multiplied by what makes the replicas' weighted sum the whole batch's value:

- a sum over examples by N / n_r;
- a mean over a mask or over sample weights by N / n_r times the replica's part of the mask's or the weights' sum.

What is not reduced (`reduction=None`) stays as it is: the tape adds it up, so that the gradient is a sum over examples,
which the replicas' sum is the whole batch's of. The factor is exactly 1 with one replica. The loss that is logged is
the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import reached_from, sources
from autodist_keras import seams
from autodist_keras.capture.hooks import hook

_UNREDUCED = ("none", None)
_OWN = (
    "{} is the model's own: a loss that it reduces itself counts as a mean over the examples; for a sum, compile "
    "with a loss of reduction='sum' and call Keras's compute_loss"
)
_ONE_NUMBER = (
    "loss {!r} makes one number of a batch, which counts as a mean over its examples; for a sum, return a value for "
    "each example from a keras.losses.Loss of reduction='sum'"
)
_COUPLED = "loss {!r} compares the examples of a batch with each other, and a replica only its own"
_COUPLING = (keras.losses.Circle, keras.losses.Dice, keras.losses.Tversky)
_ADDED = (
    "an add_loss term of one number counts as a mean over the examples; for a sum, add a tensor with a value for each "
    "example"
)


def weighted(loss: Any, trace: Any) -> Any:
    """A loss whose gradient counts by this replica's part of the batch, or wholly where each example has a value.

    The value stays: a step may log what it differentiates.
    """
    share = None if loss.shape.rank else _by_rank(loss, trace.share(loss.dtype), 1.0)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def counted(value: Any) -> Any:
        def backward(upstream: Any) -> Any:
            trace.weighting.append(tf.identity(upstream) if share is None else upstream * share)
            return trace.weighting[-1]

        return tf.identity(value), backward

    return counted(loss)


def require_asked(model: Any, step: Any, trace: Any) -> None:
    """Raise a SeamError if Keras's own step did not ask the compiled losses through which it is corrected."""
    own_step = getattr(step, "__func__", None) in (keras.Model.train_step, keras.Model.test_step)
    if own_step and not said_of_own(model) and trace.expects_losses and not trace.asked_losses:
        raise seams.LOSSES_ARE_ASKED.error("a step computed its loss without them")


def said_of_own(model: Any) -> tuple[str, ...]:
    """What the plan says where a model has a training step or a loss of its own."""
    names = ("train_step", "compute_loss")
    own = [name for name in names if getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)]
    return (_OWN.format(own[0]),) if own else ()


def said_of(model: Any, trace: Any) -> tuple[str, ...]:
    """What the plan says of the losses of a traced training step."""
    return (*dict.fromkeys(trace.remarks), *(() if trace.reduced else said_of_own(model)))


@contextmanager
def corrected(model: Any, trace: Any) -> Iterator[None]:
    """Correct the compiled losses, means of batch values and per-example `add_loss` terms of a model."""
    compile_loss = model._compile_loss
    with ExitStack() as hooks:
        if compile_loss is not None and compile_loss.built:
            trace.expects_losses = bool(compile_loss._flat_losses)
            flat = [entry._replace(loss=_Corrected(entry.loss, trace)) for entry in compile_loss._flat_losses]
            hooks.enter_context(hook(compile_loss, "_flat_losses", flat))
        for metric in _single(model.metrics):
            hooked = _UPDATES.get(type(metric).update_state)
            if hooked is not None:
                hooks.enter_context(hook(metric, "update_state", hooked(metric, trace)))
        aggregate = model._aggregate_additional_loss
        hooks.enter_context(
            hook(model, "_aggregate_additional_loss", lambda loss: aggregate(_per_example(loss, trace)))
        )
        yield


class _Corrected:
    """A compiled loss, times its factor."""

    def __init__(self, loss: Any, trace: Any) -> None:
        self._loss = loss
        self._trace = trace

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with ExitStack() as corrected:
            if isinstance(self._loss, _COUPLING):
                corrected.enter_context(self._trace.seen.said())
            value = self._reduced(y_true, y_pred, sample_weight, corrected)
        self._trace.seen.reduced(self._loss.name, value)
        return value

    def _reduced(self, y_true: Any, y_pred: Any, sample_weight: Any, corrected: ExitStack) -> Any:
        """The loss, times its factor; what is made of the losses of examples is said to be `corrected`."""
        seen: dict[str, Any] = {}
        call, trace, mask_of = self._loss.call, self._trace, seams.GET_MASK.get()
        trace.asked_losses = True

        def recording_call(y_true: Any, y_pred: Any) -> Any:
            losses = call(y_true, y_pred)
            seen.update(losses=losses, mask=mask_of(losses))
            corrected.enter_context(trace.seen.said())
            return losses

        mask = mask_of(y_pred)
        with hook(self._loss, "call", recording_call):
            value = self._loss(y_true, y_pred, sample_weight)
        if "losses" not in seen:
            if type(self._loss).__call__ is keras.losses.Loss.__call__:
                raise seams.LOSS_CALLS.error(f"{type(self._loss).__name__} computed a value without it")
            # A loss with a __call__ of its own, which may have no `call`, is taken as it is.
            return value
        trace.reduced |= value.shape.rank == 0
        one_number = seen["losses"].shape.rank == 0
        if isinstance(self._loss, _COUPLING) and (one_number or isinstance(self._loss, keras.losses.Circle)):
            trace.remarks.append(_COUPLED.format(self._loss.name))
        elif one_number and any(leaf.shape.rank != 1 for leaf in keras.tree.flatten(y_pred)):
            trace.remarks.append(_ONE_NUMBER.format(self._loss.name))
        if one_number:
            return value if sample_weight is None else self._of_weighted_scalar(value, seen["losses"], sample_weight)
        masks = [m for m in (mask, seen["mask"]) if m is not None]
        factor = self._factor(masks, sample_weight, value.dtype)
        return value if factor is None else value * factor

    def _of_weighted_scalar(self, value: Any, loss: Any, sample_weight: Any) -> Any:
        """Predictions of rank 1 have one loss a batch, which Keras multiplies by every weight before it reduces."""
        reduction, trace = self._loss.reduction, self._trace
        weights = tf.cast(sample_weight, tf.float64)
        mass, size = tf.reduce_sum(weights), tf.cast(tf.size(weights), tf.float64)
        total = trace.sum_over_replicas(mass)
        # What the loss is multiplied by, on this replica and for the whole batch.
        if reduction == "mean_with_sample_weight":
            own, whole = tf.math.divide_no_nan(mass, mass), tf.math.divide_no_nan(total, total)
        elif reduction == "sum":
            own, whole = mass, total
        elif reduction in _UNREDUCED:
            own, whole = mass, total * trace.share(tf.float64)
        else:
            own, whole = mass / size, total / trace.sum_over_replicas(size)
        scaled = value * tf.cast(tf.math.divide_no_nan(whole, own), value.dtype)
        weightless = whole / size if reduction in _UNREDUCED else whole
        return tf.where(tf.equal(own, 0.0), loss * tf.cast(weightless, loss.dtype), scaled)

    def _factor(self, masks: list[Any], sample_weight: Any, dtype: Any) -> Any:
        reduction, trace = self._loss.reduction, self._trace
        if reduction in _UNREDUCED:
            return None
        if reduction == "sum":
            return trace.whole(dtype)
        weights = sample_weight if reduction == "mean_with_sample_weight" else None
        if weights is None and not masks:
            return None
        mass = _mass(masks, weights)
        return tf.cast(trace.whole(tf.float64) * tf.math.divide_no_nan(mass, trace.sum_over_replicas(mass)), dtype)


def _mass(masks: list[Any], weights: Any) -> Any:
    """The sum of a mask, of sample weights, or of the weights that a mask leaves."""
    product = None
    for part in [*masks, weights]:
        if part is None:
            continue
        part = tf.cast(part, tf.float64)
        if product is None:
            product = part
            continue
        while product.shape.rank < part.shape.rank:
            product = tf.expand_dims(product, -1)
        while part.shape.rank < product.shape.rank:
            part = tf.expand_dims(part, -1)
        product = product * part
    return tf.reduce_sum(product)


def _per_example(loss: Any, trace: Any) -> Any:
    """Keras sums an `add_loss` term that has a value for each example; a scalar counts as a mean."""
    if loss.shape.rank is None:
        loss = loss * _by_rank(loss, 1.0, trace.whole(loss.dtype))
    elif loss.shape.rank > 0 and loss.shape[0] is None:
        return loss * trace.whole(loss.dtype)
    if tf.is_symbolic_tensor(loss) and _looks_at_examples(loss):
        trace.remarks.append(_ADDED)
    return loss


def _by_rank(loss: Any, of_scalar: Any, of_examples: Any) -> Any:
    """The factor of a loss that is one number, or of one that has a value for each example.

    Where its rank is not known while tracing, the step itself decides.
    """
    if loss.shape.rank is not None:
        return of_examples if loss.shape.rank else of_scalar
    scalar, examples = (tf.cast(factor, loss.dtype) for factor in (of_scalar, of_examples))
    return tf.where(tf.equal(tf.rank(loss), 0), scalar, examples)


def _looks_at_examples(value: Any) -> bool:
    """Whether a value is made of the step's data; a regularizer is made of variables alone."""
    behind = reached_from([value.op], sources).values()
    return any(operation.type == "Placeholder" and operation.outputs[0].dtype != tf.resource for operation in behind)


def _single(metrics: Iterable[Any]) -> Iterator[Any]:
    """Every metric; the compiled ones stand inside one that holds them."""
    for metric in metrics:
        yield metric
        # Public, and only what holds other metrics has it: Keras's own holder (a seam), and those of other packages.
        yield from _single(getattr(metric, "metrics", ()))


def _of_scalars(metric: Any, trace: Any) -> Any:
    """A mean of numbers of which each stands for a whole batch.

    So it is with `tracker.update_state(loss)` in a custom step, and with Keras's own trackers of single outputs.
    """
    update_state = metric.update_state

    def hooked(values: Any, sample_weight: Any = None) -> Any:
        return update_state(values, sample_weight=_weight(values, sample_weight, trace))

    return hooked


def _of_sums(metric: Any, trace: Any) -> Any:
    """A sum of numbers of which each stands for a whole batch: a replica adds its part of one."""
    update_state = metric.update_state

    def hooked(values: Any, sample_weight: Any = None) -> Any:
        whole = _is_float_scalar(values) and not tf.is_tensor(sample_weight)
        return update_state(values * trace.share(metric.dtype) if whole else values, sample_weight=sample_weight)

    return hooked


def _of_function(metric: Any, trace: Any) -> Any:
    """A mean of what a function makes of a batch: one number where predictions have no last axis, say, and `mae`."""
    update_state = metric.update_state

    def hooked(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        values = metric._fn(y_true, y_pred, **metric._fn_kwargs)
        asked = []

        def computed(*_: Any, **__: Any) -> Any:
            asked.append(True)
            return values

        with hook(metric, "_fn", computed):
            updated = update_state(y_true, y_pred, sample_weight=_weight(values, sample_weight, trace))
        if not asked:
            raise seams.METRIC_CALLS.error(f"the update of {type(metric).__name__} {metric.name!r} did without it")
        return updated

    return hooked


_UPDATES = {
    keras.metrics.Mean.update_state: _of_scalars,
    keras.metrics.Sum.update_state: _of_sums,
    keras.metrics.MeanMetricWrapper.update_state: _of_function,
}
"""How a metric's update is hooked, by the update that its class has; metrics with an update of their own are left."""


def _weight(values: Any, sample_weight: Any, trace: Any) -> Any:
    """The weight of values in a mean: where they are one number for a whole batch, a replica adds its part of one.

    A weight that is a tensor (the number of examples) is the replica's own already.
    """
    if not _is_float_scalar(values) or tf.is_tensor(sample_weight):
        return sample_weight
    return trace.share(tf.float64) * (1.0 if sample_weight is None else sample_weight)


def _is_float_scalar(value: Any) -> bool:
    return isinstance(value, float) or (tf.is_tensor(value) and value.shape.rank == 0 and value.dtype.is_floating)
