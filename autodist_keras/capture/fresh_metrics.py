"""Let compiled metrics that were built early begin as Keras's own would.

In: a model. Out: hooks on its compiled metrics, until they are updated. Keras builds the metrics in the first step, so
the first reset of a `fit` finds none: they begin with their initial values. `plan`, `verify` and a refused `fit` build
them earlier. Metrics that were built and not updated are fresh, and a reset leaves them alone::

    plan(x, y)           builds the metrics: they are fresh
    fit: reset           nothing happens, as in Keras
    fit: first step      the metrics are fresh no longer
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def kept_fresh(model: Any) -> Iterator[None]:
    """Leave compiled metrics fresh if they were fresh, or not built, before the block.

    The block may trace steps, or run steps and restore the state.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", metrics=[keras.metrics.AUC()])
    >>> with kept_fresh(model):
    ...     model._compile_metrics.build(keras.KerasTensor((None, 1)), model.outputs[0])
    >>> "reset_state" in vars(model._compile_metrics)
    True
    >>> updated(model)
    >>> "reset_state" in vars(model._compile_metrics)
    False
    """
    metrics = model._compile_metrics
    fresh = metrics is not None and (not metrics.built or "reset_state" in vars(metrics))
    try:
        yield
    finally:
        if fresh and metrics.built:
            vars(metrics).update(reset_state=lambda: None, update_state=_first_update(model, metrics))


def updated(model: Any) -> None:
    """Let a reset do what Keras's does, because a step has updated the metrics. `kept_fresh` has an example.

    >>> import keras
    >>> updated(keras.Sequential())  # without compiled metrics, nothing changes
    """
    metrics = model._compile_metrics
    if metrics is not None:
        for name in ("reset_state", "update_state"):
            vars(metrics).pop(name, None)


def _first_update(model: Any, metrics: Any) -> Any:
    """An update that Keras's own step makes, such as a `fit` of the plain model."""

    def update_state(*arguments: Any, **named: Any) -> Any:
        updated(model)
        return metrics.update_state(*arguments, **named)

    return update_state
