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

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import keras
import tensorflow as tf

from autodist_keras.capture.batch_norm_kernel import largest_difference, plain_settings
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.optimizers import with_wrapped
from autodist_keras.seams import FORMULAS


def kernels_of(optimizers: Iterable[Any]) -> dict[str, Any]:
    """The training kernels with the formulas of optimizers, by name, each with its optimizer; also of wrapped ones.

    >>> list(kernels_of([keras.optimizers.AdamW(), keras.optimizers.Adagrad()]))
    ['ResourceApplyAdam']
    """
    found = [(_find(each), each) for optimizer in optimizers for each in with_wrapped(optimizer)]
    return {kernel: optimizer for kernel, optimizer in found if kernel}


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
        for each in with_wrapped(optimizer):
            found = _find(each)
            if found is not None:
                _require_same_formula(each)
                hooks.enter_context(_hooked(each, found))
        yield


@contextmanager
def _hooked(optimizer: Any, kernel: str) -> Iterator[None]:
    original = optimizer.update_step

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices) or not used_in(optimizer, variable.dtype.name):
            original(gradient, variable, learning_rate)
            return
        dtype = variable.dtype
        _KERNELS[kernel](optimizer, variable, tf.cast(gradient, dtype), tf.cast(learning_rate, dtype))

    with hook(optimizer, "update_step", update_step):
        yield


def _find(optimizer: Any) -> str | None:
    """The kernel for an optimizer, by name.

    None for a subclass with an update of its own, or with an `assign` of its own.
    """
    kind, stock = type(optimizer), _stock(optimizer)
    writers = ("assign", "assign_add", "assign_sub")
    if stock is None or any(getattr(kind, name) is not getattr(stock, name) for name in writers):
        return None
    if not {"update_step", *writers}.isdisjoint(vars(optimizer)):
        return None
    if stock is keras.optimizers.SGD:
        return "ResourceApplyKerasMomentum" if optimizer.momentum != 0 else "ResourceApplyGradientDescent"
    return None if optimizer.amsgrad else "ResourceApplyAdam"


_STOCK = (keras.optimizers.SGD, keras.optimizers.Adam)
_TRIAL = ([1e-3, -2e-3, 0.5], [3e-3, 1e-3, 0.0])
"""Gradients of two updates. Small entries show at which place of a formula an epsilon is added."""
_ROUNDING = {"float64": 1e-12, "float32": 3e-5, "float16": 2e-3, "bfloat16": 1e-2}
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
    return next((base for base in _STOCK if type(optimizer).update_step is base.update_step), None)


def _difference_of(optimizer: Any, dtype: str) -> float:
    stock = _stock(optimizer)
    # Without get_config: that reads the learning rate of a model that trains. Accumulation is no part of an update.
    settings = plain_settings(optimizer, stock, "learning_rate", "gradient_accumulation_steps")
    return _difference(stock, settings, dtype)


@cache
def _difference(stock: Any, settings: tuple[tuple[str, Any], ...], dtype: str) -> float:
    """The largest relative difference between two updates by an optimizer's formula and by its kernel."""

    def updated(in_kernel: bool) -> list[Any]:
        optimizer = stock(learning_rate=0.1, name="trial", **dict(settings))
        variable = keras.Variable([1.0, -2.0, 0.5], dtype=dtype, name="trial")
        optimizer.build([variable])
        found = _find(optimizer)
        for values in _TRIAL:
            gradient, rate = tf.constant(values, dtype), tf.constant(0.1, dtype)
            # Keras calls `update_step` with the TensorFlow variable too.
            if in_kernel and found is not None:
                _KERNELS[found](optimizer, variable.value, gradient, rate)
            else:
                optimizer.update_step(gradient, variable.value, rate)
            optimizer.iterations.assign_add(1)
        return [each.value for each in (variable, *optimizer.variables)]

    return largest_difference(partial(updated, False), partial(updated, True))


def _number(value: Any, dtype: Any) -> Any:
    """A setting as a tensor of the variable's type. `tf.cast` would round a Python number to float32 first."""
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)


def _slot(slots: Any, optimizer: Any, variable: Any) -> Any:
    return slots[optimizer._get_variable_index(variable)].value.handle


def _descent(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def _momentum(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle, accum=_slot(optimizer.momentums, optimizer, variable), lr=rate, grad=gradient,
        momentum=keras.ops.cast(optimizer.momentum, variable.dtype.name), use_nesterov=optimizer.nesterov,
    )


def _adam(optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
    dtype, betas = variable.dtype, (optimizer.beta_1, optimizer.beta_2)
    # The first update has number 1. Powers have Keras's own precision.
    step = keras.ops.cast(optimizer.iterations + 1, dtype.name)
    first_power, second_power = (tf.pow(keras.ops.cast(beta, dtype.name), step) for beta in betas)
    first, second, epsilon = (_number(each, dtype) for each in (*betas, optimizer.epsilon))
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle, m=_slot(optimizer._momentums, optimizer, variable),
        v=_slot(optimizer._velocities, optimizer, variable), beta1_power=first_power, beta2_power=second_power,
        lr=rate, beta1=first, beta2=second, epsilon=epsilon, grad=gradient,
    )


_KERNELS = {
    "ResourceApplyGradientDescent": _descent, "ResourceApplyKerasMomentum": _momentum, "ResourceApplyAdam": _adam,
}  # fmt: skip
"""The update in each training kernel. Gradient and learning rate have the variable's type."""
