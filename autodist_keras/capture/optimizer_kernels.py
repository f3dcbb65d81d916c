"""Optimizer kernels: the update of an optimizer runs in one of TensorFlow's training kernels, as a fused update.

In: an optimizer. Out: a hook on its `update_step` for the time of a trace, if a kernel has the same formula.
`tracing.py` opens the hook. The captured update of a variable by plain SGD is then one operation::

    ResourceApplyGradientDescent(var=dense/kernel, alpha=learning_rate, delta=gradient)

Keras writes an update as a chain of operations, and each of them reads and writes the whole variable. The kernel does
the same in one pass, with equal results up to rounding. The operations around an update (clipping, weight decay,
averages, accumulation, constraints) stay Keras's own. A sparse gradient stays with Keras's own update, because these
kernels take dense gradients. So does a variable of a type in which the kernel's numbers differ by more than rounding.
For example, `ResourceApplyAdam` computes `1 - beta_2` in that type, and 0.999 is 1 in bfloat16.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_keras.capture.hooks import hook
from autodist_keras.seams import FORMULAS

_Update = Callable[[Any, Any, Any, Any], None]


def kernels_of(optimizers: Iterable[Any]) -> dict[str, Any]:
    """The training kernels with the formulas of optimizers, by name, each with its optimizer; also of wrapped ones.

    >>> list(kernels_of([keras.optimizers.AdamW(), keras.optimizers.Adagrad()]))
    ['ResourceApplyAdam']
    """
    found = [(_find(each), each) for optimizer in optimizers for each in _with_wrapped(optimizer)]
    return {kernel[0]: optimizer for kernel, optimizer in found if kernel}


def used_in(optimizer: Any, dtype: str) -> bool:
    """Whether variables of a type are updated in the kernel of an optimizer that has one.

    >>> [dtype for dtype in ("float32", "bfloat16") if used_in(keras.optimizers.Adam(), dtype)]
    ['float32']
    """
    return dtype in _ROUNDING and _difference_of(optimizer, dtype) <= _ROUNDING[dtype]


@contextmanager
def fused(optimizer: Any) -> Iterator[None]:
    """Let an optimizer update dense variables in one kernel inside a block, if a kernel has its formula.

    >>> optimizer = keras.optimizers.SGD()
    >>> with fused(optimizer):
    ...     "update_step" in vars(optimizer)
    True
    """
    with ExitStack() as hooks:
        for each in _with_wrapped(optimizer):
            found = _find(each)
            if found is not None:
                _require_same_formula(each)
                hooks.enter_context(_hooked(each, found[1]))
        yield


def _with_wrapped(optimizer: Any) -> Iterator[Any]:
    """An optimizer and those that it wraps: one below a loss scale, or one for each group of variables."""
    yield optimizer
    for value in list(vars(optimizer).values()):
        for leaf in value if isinstance(value, list | tuple) else [value]:
            if isinstance(leaf, keras.optimizers.Optimizer):
                yield from _with_wrapped(leaf)


@contextmanager
def _hooked(optimizer: Any, apply: _Update) -> Iterator[None]:
    original = optimizer.update_step

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices) or not used_in(optimizer, variable.dtype.name):
            original(gradient, variable, learning_rate)
            return
        apply(optimizer, variable, tf.cast(gradient, variable.dtype), tf.cast(learning_rate, variable.dtype))

    with hook(optimizer, "update_step", update_step):
        yield


def _find(optimizer: Any) -> tuple[str, _Update] | None:
    """The kernel for an optimizer, by name, and the function that calls it.

    None for a subclass with an update of its own, or with an `assign` of its own.
    """
    kind, stock = type(optimizer), _stock(optimizer)
    writers = ("assign", "assign_add", "assign_sub")
    if stock is None or any(getattr(kind, name) is not getattr(stock, name) for name in writers):
        return None
    if not {"update_step", *writers}.isdisjoint(vars(optimizer)):
        return None
    return _KERNELS[stock](optimizer)


_TRIAL = ([1e-3, -2e-3, 0.5], [3e-3, 1e-3, 0.0])
"""Gradients of two updates. Small entries show at which place of a formula an epsilon is added."""
_PLAIN = int | float | str | None
"""Settings that are no tensors of some graph: with these the trial is made."""
_ROUNDING = {"float64": 1e-9, "float32": 3e-5, "float16": 8e-3, "bfloat16": 4e-2}
"""By which part of the largest entry two updates may differ, by type. That is some roundings of the type; of float32
it is what `1 - beta_2` is off for betas up to 0.999, because the default of Adam is to have its kernel."""


def _require_same_formula(optimizer: Any) -> None:
    """Raise a SeamError if an optimizer's own update and its kernel give different numbers."""
    difference = _difference_of(optimizer, "float64")
    if _ROUNDING["float64"] < difference < math.inf:
        name = _stock(optimizer).__name__
        raise FORMULAS.error(f"two updates of {name} differ by {difference:.1e} of the largest entry")


def _stock(optimizer: Any) -> Any:
    """The class of Keras's own whose update an optimizer has, if a kernel is known for it."""
    return next((base for base in _KERNELS if type(optimizer).update_step is base.update_step), None)


def _difference_of(optimizer: Any, dtype: str) -> float:
    stock = _stock(optimizer)
    # Without get_config: that reads the learning rate of a model that trains. Accumulation is no part of an update.
    others = {"self", "learning_rate", "name", "kwargs", "gradient_accumulation_steps"}
    names = set(inspect.signature(stock.__init__).parameters) - others
    settings = ((name, getattr(optimizer, name)) for name in sorted(names))
    return _difference(stock, tuple((name, value) for name, value in settings if isinstance(value, _PLAIN)), dtype)


@cache
def _difference(stock: Any, settings: tuple[tuple[str, Any], ...], dtype: str) -> float:
    """The largest relative difference between two updates by an optimizer's formula and by its kernel.

    It is infinite where TensorFlow has no such kernel for the type, and where the numbers are not finite.
    """

    def updated(in_kernel: bool) -> list[Any]:
        optimizer = stock(learning_rate=0.1, name="trial", **dict(settings))
        variable = keras.Variable([1.0, -2.0, 0.5], dtype=dtype, name="trial")
        optimizer.build([variable])
        found = _find(optimizer)
        for values in _TRIAL:
            gradient, rate = tf.constant(values, dtype), tf.constant(0.1, dtype)
            # Keras calls `update_step` with the TensorFlow variable too.
            if in_kernel and found is not None:
                found[1](optimizer, variable.value, gradient, rate)
            else:
                optimizer.update_step(gradient, variable.value, rate)
            optimizer.iterations.assign_add(1)
        return [each.numpy().astype("float64") for each in (variable, *optimizer.variables)]

    # This thread may be tracing a function that may make no more variables. So another thread makes the trial's.
    with ThreadPoolExecutor(max_workers=1) as outside:
        try:
            own, kernel = outside.submit(lambda: (updated(False), updated(True))).result()
        except tf.errors.InvalidArgumentError:
            return math.inf
    if not all(np.isfinite(each).all() for each in (*own, *kernel)):
        return math.inf
    return max(float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) or 1.0)) for a, b in zip(own, kernel, strict=True))


def _slot(optimizer: Any, slots: list[Any], variable: Any) -> Any:
    return slots[optimizer._get_variable_index(variable)].value.handle


def _number(value: Any, dtype: Any) -> Any:
    """A setting as a tensor of the variable's type. `tf.cast` would round a Python number to float32 first."""
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)


def _powers(optimizer: Any, dtype: Any, *betas: float) -> list[Any]:
    """Each beta to the power of this update's number, in Keras's precision. The first update has number 1."""
    step = keras.ops.cast(optimizer.iterations + 1, dtype.name)
    return [tf.pow(keras.ops.cast(beta, dtype.name), step) for beta in betas]


def _sgd(optimizer: Any) -> tuple[str, _Update]:
    return _momentum(optimizer) if optimizer.momentum != 0 else ("ResourceApplyGradientDescent", _descend)


def _descend(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
    del optimizer
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def _momentum(optimizer: Any) -> tuple[str, _Update]:
    def apply(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle, accum=_slot(optimizer, optimizer.momentums, variable), lr=rate, grad=gradient,
            momentum=keras.ops.cast(optimizer.momentum, variable.dtype.name), use_nesterov=optimizer.nesterov,
        )

    return "ResourceApplyKerasMomentum", apply


def _adam(optimizer: Any) -> tuple[str, _Update]:
    name = "ResourceApplyAdamWithAmsgrad" if optimizer.amsgrad else "ResourceApplyAdam"

    def apply(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
        dtype = variable.dtype
        first, second = _powers(optimizer, dtype, optimizer.beta_1, optimizer.beta_2)
        hats = {"vhat": _slot(optimizer, optimizer._velocity_hats, variable)} if optimizer.amsgrad else {}
        getattr(tf.raw_ops, name)(
            var=variable.handle, m=_slot(optimizer, optimizer._momentums, variable),
            v=_slot(optimizer, optimizer._velocities, variable), beta1_power=first, beta2_power=second, lr=rate,
            beta1=_number(optimizer.beta_1, dtype), beta2=_number(optimizer.beta_2, dtype),
            epsilon=_number(optimizer.epsilon, dtype), grad=gradient, **hats,
        )

    return name, apply


def _adamax(optimizer: Any) -> tuple[str, _Update]:
    def apply(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
        dtype = variable.dtype
        (power,) = _powers(optimizer, dtype, optimizer.beta_1)
        tf.raw_ops.ResourceApplyAdaMax(
            var=variable.handle, m=_slot(optimizer, optimizer._m, variable),
            v=_slot(optimizer, optimizer._u, variable), beta1_power=power, lr=rate,
            beta1=_number(optimizer.beta_1, dtype), beta2=_number(optimizer.beta_2, dtype),
            epsilon=_number(optimizer.epsilon, dtype), grad=gradient,
        )

    return "ResourceApplyAdaMax", apply


def _adadelta(optimizer: Any) -> tuple[str, _Update]:
    def apply(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
        dtype = variable.dtype
        tf.raw_ops.ResourceApplyAdadelta(
            var=variable.handle, accum=_slot(optimizer, optimizer._accumulated_grads, variable),
            accum_update=_slot(optimizer, optimizer._accumulated_delta_vars, variable), lr=rate,
            rho=_number(optimizer.rho, dtype), epsilon=_number(optimizer.epsilon, dtype), grad=gradient,
        )

    return "ResourceApplyAdadelta", apply


def _rmsprop(optimizer: Any) -> tuple[str, _Update] | None:
    if not optimizer.momentum > 0:
        return None  # the kernel keeps a momentum, for which Keras then has no variable
    name = "ResourceApplyCenteredRMSProp" if optimizer.centered else "ResourceApplyRMSProp"

    def apply(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
        dtype = variable.dtype
        means = {"mg": _slot(optimizer, optimizer._average_gradients, variable)} if optimizer.centered else {}
        getattr(tf.raw_ops, name)(
            var=variable.handle, ms=_slot(optimizer, optimizer._velocities, variable),
            mom=_slot(optimizer, optimizer._momentums, variable), lr=rate, rho=_number(optimizer.rho, dtype),
            momentum=_number(optimizer.momentum, dtype), epsilon=_number(optimizer.epsilon, dtype), grad=gradient,
            **means,
        )

    return name, apply


def _ftrl(optimizer: Any) -> tuple[str, _Update]:
    def apply(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
        def number(value: Any) -> Any:
            return _number(value, variable.dtype)

        tf.raw_ops.ResourceApplyFtrlV2(
            var=variable.handle, accum=_slot(optimizer, optimizer._accumulators, variable),
            linear=_slot(optimizer, optimizer._linears, variable), grad=gradient, lr=rate,
            l1=number(optimizer.l1_regularization_strength),
            l2=number(optimizer.l2_regularization_strength) + number(optimizer.beta) / (2.0 * rate),
            l2_shrinkage=number(optimizer.l2_shrinkage_regularization_strength),
            lr_power=number(optimizer.learning_rate_power),
        )

    return "ResourceApplyFtrlV2", apply


_KERNELS: dict[Any, Callable[[Any], tuple[str, _Update] | None]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adam: _adam,
    keras.optimizers.Adamax: _adamax,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.RMSprop: _rmsprop,
    keras.optimizers.Ftrl: _ftrl,
}
