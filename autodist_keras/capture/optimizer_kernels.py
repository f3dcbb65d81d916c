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

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
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
    return {kernel.name: optimizer for kernel, optimizer in found if kernel}


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
def _hooked(optimizer: Any, kernel: _Kernel) -> Iterator[None]:
    original = optimizer.update_step

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        if isinstance(gradient, tf.IndexedSlices) or not used_in(optimizer, variable.dtype.name):
            original(gradient, variable, learning_rate)
            return
        kernel.update(optimizer, variable, tf.cast(gradient, variable.dtype), tf.cast(learning_rate, variable.dtype))

    with hook(optimizer, "update_step", update_step):
        yield


def _find(optimizer: Any) -> _Kernel | None:
    """The kernel for an optimizer.

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
_ROUNDING = {"float64": 1e-9, "float32": 3e-5, "float16": 2e-3, "bfloat16": 1e-2}
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
                found.update(optimizer, variable.value, gradient, rate)
            else:
                optimizer.update_step(gradient, variable.value, rate)
            optimizer.iterations.assign_add(1)
        return [each.value for each in (variable, *optimizer.variables)]

    return largest_difference(partial(updated, False), partial(updated, True))


@dataclass(frozen=True)
class _Kernel:
    """One of TensorFlow's training kernels: its name, and what each of its arguments is."""

    name: str
    slots: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are slots, each with the attribute of the optimizer that has the slots of all variables."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are settings of the optimizer, each with the attribute."""
    powers: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are a setting to the power of this update's number. The first update has number 1."""
    others: Callable[[Any, tf.DType, Any], dict[str, Any]] = lambda optimizer, dtype, rate: {}
    """The other arguments, for an optimizer, a type and a learning rate."""
    rate: str = "lr"
    gradient: str = "grad"

    def update(self, optimizer: Any, variable: Any, gradient: Any, rate: Any) -> None:
        """Update a variable, which has the type of the gradient and of the rate."""
        dtype, index = variable.dtype, optimizer._get_variable_index
        given = {name: getattr(optimizer, slots)[index(variable)].value.handle for name, slots in self.slots.items()}
        given |= {name: _number(getattr(optimizer, setting), dtype) for name, setting in self.numbers.items()}
        # Powers have Keras's own precision.
        step = keras.ops.cast(optimizer.iterations + 1, dtype.name) if self.powers else None
        for name, setting in self.powers.items():
            given[name] = tf.pow(keras.ops.cast(getattr(optimizer, setting), dtype.name), step)
        given |= {self.rate: rate, self.gradient: gradient, **self.others(optimizer, dtype, rate)}
        getattr(tf.raw_ops, self.name)(var=variable.handle, **given)


def _number(value: Any, dtype: Any) -> Any:
    """A setting as a tensor of the variable's type. `tf.cast` would round a Python number to float32 first."""
    return tf.cast(value, dtype) if tf.is_tensor(value) else tf.constant(value, dtype)


def _momentum(optimizer: Any, dtype: tf.DType, rate: Any) -> dict[str, Any]:
    return {"momentum": keras.ops.cast(optimizer.momentum, dtype.name), "use_nesterov": optimizer.nesterov}


def _l2(optimizer: Any, dtype: tf.DType, rate: Any) -> dict[str, Any]:
    return {"l2": _number(optimizer.l2_regularization_strength, dtype) + _number(optimizer.beta, dtype) / (2.0 * rate)}


_DESCENT = _Kernel("ResourceApplyGradientDescent", rate="alpha", gradient="delta")
_MOMENTUM = _Kernel("ResourceApplyKerasMomentum", {"accum": "momentums"}, others=_momentum)
_ADAM = _Kernel(
    "ResourceApplyAdam", {"m": "_momentums", "v": "_velocities"},
    {"beta1": "beta_1", "beta2": "beta_2", "epsilon": "epsilon"}, {"beta1_power": "beta_1", "beta2_power": "beta_2"},
)
_AMSGRAD = replace(_ADAM, name="ResourceApplyAdamWithAmsgrad", slots={**_ADAM.slots, "vhat": "_velocity_hats"})
_ADAMAX = _Kernel("ResourceApplyAdaMax", {"m": "_m", "v": "_u"}, _ADAM.numbers, {"beta1_power": "beta_1"})
_ADADELTA = _Kernel(
    "ResourceApplyAdadelta", {"accum": "_accumulated_grads", "accum_update": "_accumulated_delta_vars"},
    {"rho": "rho", "epsilon": "epsilon"},
)
_RMSPROP = _Kernel(
    "ResourceApplyRMSProp", {"ms": "_velocities", "mom": "_momentums"},
    {"rho": "rho", "momentum": "momentum", "epsilon": "epsilon"},
)
_CENTERED = replace(_RMSPROP, name="ResourceApplyCenteredRMSProp", slots={**_RMSPROP.slots, "mg": "_average_gradients"})
_FTRL = _Kernel(
    "ResourceApplyFtrlV2", {"accum": "_accumulators", "linear": "_linears"},
    {
        "l1": "l1_regularization_strength", "l2_shrinkage": "l2_shrinkage_regularization_strength",
        "lr_power": "learning_rate_power",
    }, others=_l2,
)  # fmt: skip
_KERNELS: dict[Any, Callable[[Any], _Kernel | None]] = {
    keras.optimizers.SGD: lambda optimizer: _MOMENTUM if optimizer.momentum != 0 else _DESCENT,
    keras.optimizers.Adam: lambda optimizer: _AMSGRAD if optimizer.amsgrad else _ADAM,
    keras.optimizers.Adamax: lambda _: _ADAMAX,
    keras.optimizers.Adadelta: lambda _: _ADADELTA,
    # Without a momentum Keras has no variable for it, and the kernel keeps one.
    keras.optimizers.RMSprop: lambda optimizer: (
        None if not optimizer.momentum > 0 else _CENTERED if optimizer.centered else _RMSPROP
    ),
    keras.optimizers.Ftrl: lambda _: _FTRL,
}
"""The kernel for an optimizer, by the class of Keras's own whose update it has."""
