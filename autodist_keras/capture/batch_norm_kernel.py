"""Batch normalization in TensorFlow's fused kernel.

In: a model, and the `Trace` of a step. Out: hooks on `call` of the layers that the kernel can compute, for the time of
a trace. `tracing.py` opens the hooks. Such a layer is then one operation, and its gradient another one::

    y, mean, variance = FusedBatchNormV3(x, scale=gamma, offset=beta)

Keras writes a layer as some ten operations, and most of them read and write a tensor as large as `x`. The kernel gives
equal results up to rounding: a trial on random numbers compares both before the kernel is used. The kernel takes the
channels as the last of four axes, and computes statistics in float32, as Keras does for inputs of fewer bits.

A layer stays Keras's own if it has a mask, is synchronized or renormalizes, computes in float64, has inputs of two
axes (of which the kernel is slower), or has other channels than those of the last axis or of the axis behind the batch.
So does a layer of one channel, whose mean the kernel adds up entry by entry: rounding grows with the number of entries.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.capture.batch_axis import NO_CLAIM, Alike, Rows, State
from autodist_keras.capture.hooks import hook

KERNEL = "FusedBatchNormV3"
_NORM = keras.layers.BatchNormalization
_ROUNDING = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
"""By which part of the largest entry a layer and the kernel may differ, by the type in which the layer computes."""
_LEAST_EPSILON = 1.001e-5
"""cuDNN refuses smaller ones."""


def layers_in_kernel(model: Any) -> list[Any]:
    """The layers of a model that the kernel normalizes. XLA fuses Keras's own operations, so a compiled model has none.

    >>> layers = [keras.layers.BatchNormalization(name="norm"), keras.layers.BatchNormalization(renorm=True)]
    >>> model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    >>> [layer.name for layer in layers_in_kernel(model)]
    ['norm']
    """
    if model.compiled and model.jit_compile:
        return []
    return [layer for layer in model._flatten_layers() if _is_plain(layer) and _has_formula(layer, layer.trainable)]


@contextmanager
def normalized(model: Any, trace: Any) -> Iterator[None]:
    """Let the kernel normalize for layers of a model while a step is traced.

    >>> from autodist_keras.capture.example import with_trace
    >>> model = keras.Sequential([keras.Input((1, 1, 2)), keras.layers.BatchNormalization(epsilon=1.0)])
    >>> def step(trace):
    ...     with normalized(model, trace):
    ...         outputs = model(tf.reshape([1.0, 3.0, 3.0, 1.0], [2, 1, 1, 2]), training=True)
    ...     print(KERNEL in {operation.type for operation in trace.graph.get_operations()})
    ...     return tf.squeeze(tf.sqrt(2.0) * outputs)
    >>> [[round(value, 3) for value in values] for values in with_trace(step)]
    True
    [[-1.0, 1.0], [1.0, -1.0]]
    """
    with ExitStack() as hooks:
        for layer in layers_in_kernel(model):
            hooks.enter_context(hook(layer, "call", _hooked(layer, trace.seen)))
        yield


def _is_plain(layer: Any) -> bool:
    """Whether a layer computes by Keras's own methods, on inputs that the kernel takes."""
    if not isinstance(layer, _NORM) or not layer.built or not {"call", "_moments"}.isdisjoint(vars(layer)):
        return False
    if any(getattr(type(layer), name) is not getattr(_NORM, name) for name in ("call", "_moments")):
        return False
    if layer.synchronized or layer.epsilon < _LEAST_EPSILON or layer.moving_mean.shape[0] == 1:
        return False
    rank = layer.input_spec.ndim
    return 3 <= rank <= 5 and layer.axis % rank in (1, rank - 1) and layer.compute_dtype in _ROUNDING


def _hooked(layer: Any, seen: Any) -> Any:
    own = layer.call

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        trains = bool(training) and layer.trainable
        dense = isinstance(inputs, tf.Tensor) and inputs.dtype.name == layer.compute_dtype
        if mask is not None or not dense or not _has_formula(layer, trains):
            return own(inputs, training=training, mask=mask)
        with seen.noted_elsewhere():
            outputs, statistics = _in_kernel(layer, inputs, trains)
        seen.take_statistics(statistics)
        seen.in_kernel[layer.name] = None
        # The outputs have the examples of the inputs, also where the kernel gets them in another shape.
        seen.known.append((outputs, lambda state_of: _normalized(state_of(inputs))))
        return outputs

    return call


def _normalized(state: State) -> State:
    """What is left of a dependence on the examples: a sum over them is no sum when it is normalized."""
    return state if isinstance(state, Rows | Alike) else NO_CLAIM


def _in_kernel(layer: Any, inputs: Any, trains: bool) -> tuple[Any, Sequence[Any]]:
    """What a layer makes of its inputs, and their mean and biased variance if it trains."""
    rank, channels = inputs.shape.rank, layer.moving_mean.shape[0]
    order = None if layer.axis % rank == rank - 1 else [0, *range(2, rank), 1]
    x = tf.transpose(inputs, order) if order else inputs
    shape = tf.shape(x)
    moving = [keras.ops.cast(each, "float32") for each in (layer.moving_mean, layer.moving_variance)]
    scale = tf.ones([channels]) if layer.gamma is None else keras.ops.cast(layer.gamma, "float32")
    offset = tf.zeros([channels]) if layer.beta is None else keras.ops.cast(layer.beta, "float32")
    given = [tf.zeros([0])] * 2 if trains else moving
    found = getattr(tf.raw_ops, KERNEL)(
        x=x if rank == 4 else tf.reshape(x, [-1, 1, 1, channels]), scale=scale, offset=offset, mean=given[0],
        variance=given[1], epsilon=layer.epsilon, is_training=trains,
    )
    outputs = found.y if rank == 4 else tf.reshape(found.y, shape)
    outputs = tf.transpose(outputs, [0, rank - 1, *range(1, rank - 1)]) if order else outputs
    if not trains:
        # TensorFlow would join the kernel with a convolution before it and an activation behind it. For some, as tanh,
        # it has no kernel for all three. It joins nothing across this operation.
        return tf.ensure_shape(outputs, outputs.shape), ()
    # The kernel's variance is the unbiased one. That of a single entry is not a number on some devices.
    count, mean = tf.cast(tf.size(x) // channels, tf.float32), found.batch_mean
    statistics = mean, tf.where(count > 1.0, found.batch_variance * ((count - 1.0) / count), mean - mean)
    for variable, before, now in zip((layer.moving_mean, layer.moving_variance), moving, statistics, strict=True):
        variable.assign(before * layer.momentum + now * (1.0 - layer.momentum))
    return outputs, statistics


def _has_formula(layer: Any, trains: bool) -> bool:
    """Whether a layer and the kernel give the same numbers up to rounding, in training or in inference."""
    settings = plain_settings(layer, _NORM, "synchronized")
    difference = _difference(layer.input_spec.ndim, layer.dtype_policy.name, trains, settings)
    return difference <= _ROUNDING[layer.compute_dtype]


@cache
def _difference(rank: int, policy: str, trains: bool, settings: tuple[tuple[str, Any], ...]) -> float:
    """The largest relative difference between a layer with some settings and the kernel, in all that they compute."""

    def computed(in_kernel: bool) -> list[Any]:
        layer = _NORM(dtype=policy, name="trial", **dict(settings))
        shape, random = (5, 4, 3, 2, 3)[:rank], np.random.default_rng(0)
        layer.build(shape)
        for variable in layer.weights:
            variable.assign(random.uniform(0.5, 2.0, variable.shape))
        x, upstream = (tf.constant(random.normal(1.0, 2.0, shape), layer.compute_dtype) for _ in range(2))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = _in_kernel(layer, x, trains)[0] if in_kernel else layer(x, training=trains)
        of = [x, *(variable.value for variable in layer.trainable_variables)]
        return [y, *tape.gradient(y, of, upstream), *(variable.value for variable in layer.weights)]

    return largest_difference(partial(computed, False), partial(computed, True))


_PLAIN = int | float | str | None
"""Settings that are no tensors of some graph, and no objects: with these a trial is made."""


def plain_settings(instance: Any, stock: Any, *but: str) -> tuple[tuple[str, Any], ...]:
    """The settings of an instance that the constructor of a class of Keras's own takes, but for some, by name.

    >>> import keras
    >>> plain_settings(keras.layers.LeakyReLU(0.5), keras.layers.LeakyReLU)
    (('negative_slope', 0.5),)
    """
    names = inspect.signature(stock.__init__).parameters.keys() - {"self", "name", "kwargs", *but}
    settings = ((name, getattr(instance, name)) for name in sorted(names))
    return tuple((name, value) for name, value in settings if isinstance(value, _PLAIN))


def largest_difference(own: Callable[[], Sequence[Any]], in_kernel: Callable[[], Sequence[Any]]) -> float:
    """The largest relative difference between the arrays of two functions: one of Keras's, one in a kernel.

    >>> largest_difference(lambda: [tf.constant([3.0, 4.0])], lambda: [tf.constant([3.0, 5.0])])
    0.25

    It is infinite where TensorFlow has no such kernel for the type, and where the numbers are not finite.
    """

    def computed() -> list[list[Any]]:
        return [[tf.cast(each, tf.float64).numpy() for each in compute()] for compute in (own, in_kernel)]

    # This thread may be tracing a function that may make no more variables. So another thread makes the trial's.
    with ThreadPoolExecutor(max_workers=1) as outside:
        try:
            found = outside.submit(computed).result()
        except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnimplementedError):
            return math.inf
    if not all(np.isfinite(each).all() for each in (*found[0], *found[1])):
        return math.inf
    return max(float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) or 1.0)) for a, b in zip(*found, strict=True))
