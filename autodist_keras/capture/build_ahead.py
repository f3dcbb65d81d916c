"""What Keras's own step makes in its first call, made before that step is traced.

TensorFlow traces a function again in which variables were created, and a large model's trace takes seconds. Where it is
not certain that nothing but the time changes, nothing is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

_ONLY_MAKE_VARIABLES = (
    keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.RMSprop,
    keras.optimizers.Adagrad, keras.optimizers.Lion, keras.optimizers.Adafactor, keras.optimizers.Adadelta,
    keras.optimizers.Adamax, keras.optimizers.Nadam, keras.optimizers.Ftrl, keras.optimizers.Lamb,
)
"""Optimizers whose `build` does nothing else, so that it may as well run before the trace."""

_OF_SHAPES = {"accuracy", "acc", "crossentropy", "ce"}
"""Metrics that Keras chooses by the shapes of targets and predictions, which are certain in the trace only."""

_OWN_STEPS = (keras.Model.train_step, keras.Model.test_step)


def build_ahead(model: Any, step: Callable[[Any], Any], data: Any, specs: Sequence[tf.TensorSpec]) -> None:
    """Make the variables of the optimizer, the loss and the metrics as `step(data)` would in its first call."""
    made_by = getattr(step, "__func__", None)
    # A model may be built before its layers are, which the first call builds: an optimizer must know their variables.
    if made_by not in _OWN_STEPS or not all(layer.built for layer in model._flatten_layers()):
        return
    if made_by is keras.Model.train_step:
        _build_optimizer(model)
    if type(model).__module__.startswith("keras.") and all(spec.shape.rank is not None for spec in specs):
        _build_loss_and_metrics(model, data, specs)


def _build_optimizer(model: Any) -> None:
    optimizer = model.optimizer
    if optimizer is None or type(optimizer) not in _ONLY_MAKE_VARIABLES or optimizer.built:
        return
    with keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(model.trainable_variables)


def _build_loss_and_metrics(model: Any, data: Any, specs: Sequence[tf.TensorSpec]) -> None:
    """For one output with one target, of which Keras looks at nothing but that there is one."""
    metrics = model._compile_metrics
    given = [] if metrics is None else keras.tree.flatten([metrics._user_metrics, metrics._user_weighted_metrics])
    if any(isinstance(metric, str) and metric in _OF_SHAPES for metric in given):
        return
    remaining = iter(specs)
    symbolic = keras.tree.map_structure(lambda leaf: None if leaf is None else _symbolic(next(remaining)), data)
    _, target, _ = keras.utils.unpack_x_y_sample_weight(symbolic)
    # A Sequential model has none inside where Keras could not tell the shapes.
    functional = model._functional if isinstance(model, keras.Sequential) else model
    output = None if functional is None else functional.output
    if not isinstance(target, keras.KerasTensor) or not isinstance(output, keras.KerasTensor):
        return
    for part in (model._compile_loss, metrics):
        if part is not None and not part.built:
            part.build(target, output)


def _symbolic(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape.as_list(), keras.backend.standardize_dtype(spec.dtype))
