"""The optimizers of a model: found, and hooked while a step is traced.

In: a model, and the `Trace` of a step. Out: its optimizers, each with hooks on `apply` and `scale_loss`, which
`tracing.py` opens for the time of the trace. The hook on `apply` puts a marker on each gradient::

    optimizer.apply([gradient], [kernel])    # as a custom step writes it
    marked = Identity(gradient)              # what the hook adds; `apply` updates the kernel with `marked`
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import Marked
from autodist_core.step.reaching import reached
from autodist_keras.capture import losses
from autodist_keras.capture.hooks import hook


def optimizers_of(model: Any) -> list[Any]:
    """Every optimizer that is an attribute of a model or of its layers, also inside a list or a dict.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> [type(optimizer).__name__ for optimizer in optimizers_of(model)]
    ['SGD']
    """
    layers = [model, *model._flatten_layers(include_self=False)]
    return list({id(each): each for layer in layers for each in _within(vars(layer))}.values())


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _within(part)
    elif isinstance(value, keras.optimizers.Optimizer):
        yield value


def unbuilt_optimizers(model: Any) -> list[Any]:
    """The optimizers of a model that have no slots yet, and those inside them.

    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    >>> [type(optimizer).__name__ for optimizer in unbuilt_optimizers(model)]
    ['LossScaleOptimizer', 'SGD']
    """
    return [each for optimizer in optimizers_of(model) for each in with_wrapped(optimizer) if not each.built]


def with_wrapped(optimizer: Any) -> list[Any]:
    """An optimizer and those that it wraps: one below a loss scale, or one for each group of variables.

    >>> [type(each).__name__ for each in with_wrapped(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))]
    ['LossScaleOptimizer', 'SGD']
    """
    return reached([optimizer], lambda each: _within(vars(each)))


@contextmanager
def hooked_optimizer(optimizer: Any, trace: Any) -> Iterator[None]:
    """Mark the gradients that an optimizer's `apply` gets, and weight the losses that its `scale_loss` gets.

    >>> from autodist_keras.capture.example import with_trace
    >>> kernel, optimizer = keras.Variable(2.0), keras.optimizers.SGD(1.0)
    >>> optimizer.build([kernel])
    >>> def step(trace):
    ...     with hooked_optimizer(optimizer, trace):
    ...         optimizer.apply([tf.constant(0.5, name="gradient")])
    ...     print([marked.values.op.inputs[0].op.name for marked in trace.gradients])
    ...     return trace.total
    >>> _ = with_trace(step)
    ['gradient']
    >>> float(kernel)
    1.5
    """
    apply, scale_loss = optimizer.apply, optimizer.scale_loss

    def hooked_apply(grads: Any, trainable_variables: Any = None) -> Any:
        if trace.inside:
            return apply(grads, trainable_variables)
        trace.require_top(f"{type(optimizer).__name__}.apply is called")
        occurrence = len(trace.updates)
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        marked = [
            None if gradient is None else _marked(gradient, variable, occurrence, trace)
            for gradient, variable in zip(grads, variables, strict=True)
        ]
        trace.gradients += [m[0] for m in marked if m is not None]
        first = len(trace.graph.get_operations())
        trace.inside += 1
        try:
            result = apply([None if m is None else m[1] for m in marked], trainable_variables)
        finally:
            trace.inside -= 1
        trace.updates[occurrence] = first, len(trace.graph.get_operations())
        return result

    def hooked_scale_loss(loss: Any) -> Any:
        scaled = scale_loss(loss)
        if trace.inside or tf.compat.v1.get_default_graph() is not trace.graph:
            return scaled
        return losses.weighted(scaled, trace)

    with hook(optimizer, "apply", hooked_apply), hook(optimizer, "scale_loss", hooked_scale_loss):
        yield


def ranges_of(model: Any) -> frozenset[int]:
    """The ids of the variables in which float8 layers keep the ranges of what they compute.

    Their gradients take the place of their values. Such a value is the largest of a batch, or is made of such values:
    Keras takes the larger of two batches' values, too, where it accumulates gradients.

    >>> ranges_of(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    frozenset()
    """
    layers = [layer for layer in model._flatten_layers() if getattr(layer, "quantization_mode", None) == "float8"]
    return frozenset(
        id(variable) for layer in layers for variable in layer.trainable_variables
        if getattr(variable, "overwrite_with_gradient", False)
    )


def _marked(gradient: Any, variable: Any, occurrence: int, trace: Any) -> tuple[Marked, Any]:
    if id(variable) not in trace.ranges:
        return _mark(gradient, variable, occurrence)
    trace.maxima.append(tf.identity(gradient, name="max_over_replicas"))
    values = tf.identity(trace.maxima[-1])
    return Marked(variable, occurrence, values, alike=True), values


def _mark(gradient: Any, variable: Any, occurrence: int) -> tuple[Marked, Any]:
    if isinstance(gradient, tf.IndexedSlices):
        values, indices = tf.identity(gradient.values), tf.identity(gradient.indices)
        # The gradient of a function has the function's shape tensor. The update would then depend on the function.
        shape = tf.constant(list(variable.shape), tf.int32)
        return Marked(variable, occurrence, values, indices), tf.IndexedSlices(values, indices, shape)
    values = tf.identity(gradient)
    return Marked(variable, occurrence, values), values
