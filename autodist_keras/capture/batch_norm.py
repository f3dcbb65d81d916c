"""Batch normalization with `synchronized=True`: the statistics of the whole batch, whichever replica has which rows.

Sums, sums of squares and counts are added over the replicas while the step runs; so are the gradients that flow back
through them. The result equals one device's, of what a mask leaves too, by the formula that Keras has for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import computed_from
from autodist_keras import seams
from autodist_keras.capture.hooks import hook


@contextmanager
def synchronized(model: Any, trace: Any) -> Iterator[None]:
    """Let the synchronized layers of a model compute statistics over all replicas while a step is traced."""
    with ExitStack() as hooks:
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
                asked: list[bool] = []
                hooks.enter_context(hook(layer, "_moments", _statistics(layer, trace, asked)))
                if type(layer).call is keras.layers.BatchNormalization.call:
                    hooks.enter_context(hook(layer, "call", _asking(layer, asked)))
        yield


def _asking(layer: Any, asked: list[bool]) -> Any:
    """The layer's own `call`, which raises a SeamError if it normalizes in training by other statistics than ours."""
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
        return _sum_over_replicas(tf.reduce_sum(values, axis=axes, keepdims=True), trace)

    def statistics(inputs: Any, mask: Any) -> Any:
        asked.append(True)
        if mask is not None:
            return of_the_kept(inputs, mask)
        dtype = inputs.dtype
        x = tf.cast(inputs, tf.float32) if dtype.size < 4 else inputs
        rows, total, squares = (added_up(part) for part in (tf.ones_like(x), x, tf.square(x)))
        mean = tf.math.divide_no_nan(total, rows)
        variance = tf.maximum(tf.math.divide_no_nan(squares, rows) - tf.square(mean), 0.0)
        return tf.cast(tf.squeeze(mean, axes), dtype), tf.cast(tf.squeeze(variance, axes), dtype)

    def of_the_kept(inputs: Any, mask: Any) -> Any:
        kept = tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs)), tf.bool)
        nothing = tf.zeros_like(inputs)
        rows = added_up(tf.cast(kept, inputs.dtype)) + keras.backend.epsilon()
        mean = added_up(tf.where(kept, inputs, nothing)) / rows
        variance = added_up(tf.square(tf.where(kept, inputs - mean, nothing))) / rows
        return tf.squeeze(mean), tf.squeeze(variance)

    return statistics


def _sum_over_replicas(value: Any, trace: Any) -> Any:
    def summed(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            if upstream.op.name in computed_from(trace.weighting):
                return trace.sum_over_replicas(upstream)
            # The loss does not carry this replica's part of the batch yet; its gradient will.
            share = trace.share(upstream.dtype)
            return trace.sum_over_replicas(upstream * share) / share

        return trace.sum_over_replicas(value), gradient

    return tf.custom_gradient(summed)(value)
