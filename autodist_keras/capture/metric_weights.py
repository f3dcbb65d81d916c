"""Weight what metrics are updated with, while the step is traced.

In: a model, and the `Trace` of a step. Out: hooks on the updates of metrics. `tracing.py` opens the hooks for the time
of the trace. If a step updates a metric with one number of the batch, such as a loss, each replica has the number of
its slice. That number counts by the replica's share of the batch. For `tracker.update_state(loss)` the graph has::

    sum += loss * (examples / total)      # the metric's own variables
    count += examples / total
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from autodist_keras import seams
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.sums import counted


@contextmanager
def weighted_metrics(model: Any, trace: Any) -> Iterator[None]:
    """Weight means and sums of batch values in the metrics of a model.

    >>> from autodist_keras.capture.example import with_trace
    >>> model = keras.Sequential()
    >>> model.tracker = mean = keras.metrics.Mean()
    >>> def step(trace):
    ...     with weighted_metrics(model, trace):
    ...         mean.update_state(tf.constant(2.0))
    ...     return trace.total
    >>> _ = with_trace(step)
    >>> [float(variable) for variable in mean.variables]
    [1.5, 0.75]
    """
    with ExitStack() as hooks:
        for metric in with_contained(metrics_of(model)):
            hooked = _UPDATES.get(type(metric).update_state)
            if hooked is not None:
                hooks.enter_context(hook(metric, "update_state", hooked(metric, trace)))
        yield


def metrics_of(model: Any) -> list[Any]:
    """The metrics of a model, and those that its own `metrics` leaves out: attributes of the model and of its layers.

    >>> class Hides(keras.Sequential):
    ...     metrics = ()
    >>> model = Hides()
    >>> model.tracker = keras.metrics.Mean(name="tracker")
    >>> [metric.name for metric in metrics_of(model)]
    ['tracker']
    """
    # Public: the property that a model's class may override.
    tracked = keras.Model.metrics.fget(model)
    return list({id(metric): metric for metric in [*model.metrics, *tracked]}.values())


def with_contained(metrics: Iterable[Any]) -> Iterator[Any]:
    """Every metric, and the metrics that it contains: Keras puts the compiled ones into a metric of its own.

    >>> [metric.name for metric in with_contained([keras.metrics.Mean(name="tracker")])]
    ['tracker']
    """
    for metric in metrics:
        yield metric
        # Public. Only a metric that contains others has `metrics`: Keras's own (a seam), and those of other packages.
        yield from with_contained(getattr(metric, "metrics", ()))


def _of_scalars(metric: Any, trace: Any) -> Any:
    """The update of a mean or a sum of scalars. Each scalar is the value of a batch, and counts by the replica's share.

    Examples are `tracker.update_state(loss)` in a custom step, and Keras's own trackers of single outputs.
    """
    update_state = metric.update_state

    def hooked(values: Any, sample_weight: Any = None) -> Any:
        return update_state(*_weighted(values, sample_weight, trace))

    return hooked


def _of_function(metric: Any, trace: Any) -> Any:
    """The update of a mean of a function's values. `mae` of rank 1, for example, makes one number of a batch."""
    update_state = metric.update_state

    def hooked(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        values, weight = _weighted(metric._fn(y_true, y_pred, **metric._fn_kwargs), sample_weight, trace)
        asked = []

        def computed(*_: Any, **__: Any) -> Any:
            asked.append(True)
            return values

        with hook(metric, "_fn", computed):
            updated = update_state(y_true, y_pred, sample_weight=weight)
        if not asked:
            raise seams.METRIC_CALLS.error(f"the update of {type(metric).__name__} {metric.name!r} did without it")
        return updated

    return hooked


_UPDATES = {
    keras.metrics.Mean.update_state: _of_scalars,
    keras.metrics.Sum.update_state: _of_scalars,
    keras.metrics.MeanMetricWrapper.update_state: _of_function,
}
"""How a metric's update is hooked, by the update of its class. A metric with another update has no hook."""


def _weighted(values: Any, sample_weight: Any, trace: Any) -> tuple[Any, Any]:
    """The values in a mean, and their weight. One number for a batch has the replica's share as its weight.

    A weight that is a tensor (the number of examples) already belongs to this replica.
    """
    if not _is_float_scalar(values) or tf.is_tensor(sample_weight):
        return values, sample_weight
    return counted(values, trace), trace.share(tf.float64) * (1.0 if sample_weight is None else sample_weight)


def _is_float_scalar(value: Any) -> bool:
    return isinstance(value, float) or (tf.is_tensor(value) and value.shape.rank == 0 and value.dtype.is_floating)
