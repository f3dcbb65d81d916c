"""Batch normalization with `synchronized=True`: normalize by the statistics of the whole batch.

In: a model, and the `Trace` of a step. Out: hooks on `_moments` of the synchronized layers, and markers in the traced
graph, which the kernels replace by sums over the replicas::

    sum_over_replicas = Identity(StopGradient(Sum(x)))

Counts, sums and sums of squares are added over the replicas while the step runs. The gradients that flow back through
these sums are added too; `gathered` has the rows of all replicas likewise. The result equals one device's, also with a
mask, for which Keras has a formula of its own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import computed_from, rows_of_all
from autodist_core.capture.batch_axis import SAME
from autodist_keras import seams
from autodist_keras.capture.hooks import hook


def synchronize_batch_norm(model: Any) -> int:
    """Let every `BatchNormalization` of a ready model take the statistics of the whole batch, and count these layers.

    It sets `synchronized`, as the argument of the layer does, also in nested models. A step of `model` that was traced
    before is traced anew.

    >>> backbone = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    >>> model = keras.Sequential([backbone, keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    >>> synchronize_batch_norm(model), backbone.layers[-1].synchronized
    (2, True)
    """
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in layers:
        layer.synchronized = True
    if isinstance(model, keras.Model):
        model.train_function = None
    return len(layers)


@contextmanager
def synchronized(model: Any, trace: Any) -> Iterator[None]:
    """Let a model's synchronized layers compute statistics over all replicas, while a step is traced.

    >>> from autodist_keras.capture.example import with_trace
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization(synchronized=True)])
    >>> def step(trace):
    ...     with synchronized(model, trace):
    ...         outputs = model(tf.constant([[1.0], [3.0]]), training=True)
    ...     print(len(trace.sums), "sums over the replicas")
    ...     return outputs
    >>> _ = with_trace(step)
    3 sums over the replicas
    """
    with ExitStack() as hooks:
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
                asked: list[bool] = []
                hooks.enter_context(hook(layer, "_moments", _statistics(layer, trace, asked)))
                if type(layer).call is keras.layers.BatchNormalization.call:
                    hooks.enter_context(hook(layer, "call", _asking(layer, asked)))
        yield


def _asking(layer: Any, asked: list[bool]) -> Any:
    """The layer's own `call`; a SeamError if it normalizes in training by other statistics than the hook's."""
    call = layer.call

    def called(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        asked.clear()
        outputs = call(inputs, training=training, mask=mask)
        if training and layer.trainable and not asked:
            raise seams.NORM_ASKS.error(f"layer {layer.name!r} did without it")
        return outputs

    return called


def _statistics(layer: Any, trace: Any, asked: list[bool]) -> Any:
    axes = layer._reduction_axes

    def added_up(values: Any) -> Any:
        return summed(tf.reduce_sum(values, axis=axes, keepdims=True), trace)

    def statistics(inputs: Any, mask: Any) -> Any:
        asked.append(True)
        if mask is not None:
            return masked(inputs, mask)
        dtype = inputs.dtype
        x = tf.cast(inputs, tf.float32) if dtype.size < 4 else inputs
        rows, total, squares = (added_up(part) for part in (tf.ones_like(x), x, tf.square(x)))
        mean = tf.math.divide_no_nan(total, rows)
        variance = tf.maximum(tf.math.divide_no_nan(squares, rows) - tf.square(mean), 0.0)
        return tf.cast(tf.squeeze(mean, axes), dtype), tf.cast(tf.squeeze(variance, axes), dtype)

    def masked(inputs: Any, mask: Any) -> Any:
        counted = tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs)), tf.bool)
        zeros = tf.zeros_like(inputs)
        rows = added_up(tf.cast(counted, inputs.dtype)) + keras.backend.epsilon()
        mean = added_up(tf.where(counted, inputs, zeros)) / rows
        variance = added_up(tf.square(tf.where(counted, inputs - mean, zeros))) / rows
        return tf.squeeze(mean), tf.squeeze(variance)

    return statistics


def summed(value: Any, trace: Any) -> Any:
    """The sum of a value over the replicas.

    >>> from autodist_keras.capture.example import with_trace
    >>> def step(trace):
    ...     total = summed(tf.constant(2.0), trace)
    ...     print([marker.op.name for marker in trace.sums])
    ...     return total
    >>> with_trace(step)
    ['sum_over_replicas']
    2.0
    """
    def forward(value: Any) -> Any:
        return trace.sum_over_replicas(value), lambda upstream: _added(upstream, trace)

    return tf.custom_gradient(forward)(value)


def gathered(value: Any, trace: Any) -> Any:
    """The rows of all replicas, in the order of the batch.

    >>> from autodist_keras.capture.example import with_trace
    >>> def step(trace):
    ...     rows = gathered(tf.constant([[1.0], [2.0]]), trace)
    ...     print([marker.op.name for marker in trace.gathers])
    ...     return rows
    >>> with_trace(step)
    ['rows_of_replicas']
    [[1.0], [2.0]]
    """
    return rows_of_all(value, trace.rows_of_replicas, lambda upstream: _added(upstream, trace), trace.replica)


def _added(upstream: Any, trace: Any) -> Any:
    """The sum of gradients over the replicas."""
    upstream = tf.convert_to_tensor(upstream)
    if trace.recording is not None or upstream.op.name in computed_from(trace.weighting):
        return trace.sum_over_replicas(upstream)
    # The loss is not multiplied by this replica's share yet. Its gradient will be. The product and the quotient cancel
    # over the replicas, so the analysis of what mixes examples takes the share for a constant here.
    share = tf.identity(trace.share(upstream.dtype))
    trace.seen.known.append((share, SAME))
    return trace.sum_over_replicas(upstream * share) / share
