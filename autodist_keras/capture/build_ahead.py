"""Make the variables that Keras's own step would make in its first call, before that step is traced.

In: a model, its step, and the specs of a batch. Out: a built optimizer, loss and metrics. The trace comes after it.

TensorFlow traces a function twice if variables are created in the first trace, and the trace of a large model takes
seconds. If it is not certain that only the time changes, nothing is made here.

>>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
>>> model.compile("adam", "mse")
>>> data = (tf.zeros((4, 3)), tf.zeros((4, 1)))
>>> build_ahead(model, model.train_step, data, [tf.TensorSpec.from_tensor(part) for part in data])
>>> model.optimizer.built
True
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.runtime import is_huge
from autodist_core.training import has_value, without_value
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.optimizers import unbuilt_optimizers
from autodist_keras.capture.recipes import first_value
from autodist_keras.seams import GLOBAL_ATTRIBUTE

_ONLY_MAKE_VARIABLES = (
    keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW, keras.optimizers.RMSprop,
    keras.optimizers.Adagrad, keras.optimizers.Lion, keras.optimizers.Adafactor, keras.optimizers.Adadelta,
    keras.optimizers.Adamax, keras.optimizers.Nadam, keras.optimizers.Ftrl, keras.optimizers.Lamb,
)
"""Optimizers whose `build` only makes variables. It may run before the trace."""

_OF_SHAPES = {"accuracy", "acc", "crossentropy", "ce"}
"""Metrics that Keras chooses by the shapes of targets and predictions. Only the trace knows these for certain."""

_OWN_STEPS = (keras.Model.train_step, keras.Model.test_step)


def build_ahead(model: Any, step: Callable[[Any], Any], data: Any, specs: Sequence[Any]) -> None:
    """Make the variables of optimizer, loss and metrics as the first `step(data)` would. The module has an example."""
    made_by = getattr(step, "__func__", None)
    # A model may be built before its layers. Its first call builds them, and an optimizer must know their variables.
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
    with slots_as_weights(model), keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(model.trainable_variables)


@contextmanager
def slots_as_weights(model: Any) -> Iterator[None]:
    """Let the optimizers of a model make variables without values for weights without values.

    >>> with without_values():
    ...     model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse")
    >>> with slots_as_weights(model):
    ...     model.optimizer.build(model.trainable_variables)
    >>> has_values(model.optimizer.variables)
    False
    """
    with ExitStack() as hooks:
        for optimizer in unbuilt_optimizers(model):
            make = partial(_made_as, optimizer.add_variable_from_reference)
            hooks.enter_context(hook(optimizer, "add_variable_from_reference", make))
        yield


def _made_as(make: Callable[..., Any], reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
    with nullcontext() if has_values([reference_variable]) else without_values():
        return make(reference_variable, *args, **kwargs)


def _build_loss_and_metrics(model: Any, data: Any, specs: Sequence[Any]) -> None:
    """Build the loss and the metrics of a model with one output and one target: Keras looks at their number only."""
    metrics = model._compile_metrics
    given = [] if metrics is None else keras.tree.flatten([metrics._user_metrics, metrics._user_weighted_metrics])
    if any(isinstance(metric, str) and metric in _OF_SHAPES for metric in given):
        return
    remaining = iter(specs)
    symbolic = keras.tree.map_structure(lambda leaf: None if leaf is None else _symbolic(next(remaining)), data)
    _, target, _ = keras.utils.unpack_x_y_sample_weight(symbolic)
    # A Sequential model has no functional model inside if Keras does not know the shapes.
    functional = model._functional if isinstance(model, keras.Sequential) else model
    output = None if functional is None else functional.output
    if not isinstance(target, keras.KerasTensor) or not isinstance(output, keras.KerasTensor):
        return
    for part in (model._compile_loss, metrics):
        if part is not None and not part.built:
            part.build(target, output)


def _symbolic(spec: Any) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape.as_list(), keras.backend.standardize_dtype(spec.dtype))


@contextmanager
def without_values() -> Iterator[None]:
    """Build a model without values in a `with` block: to plan it, or to train one that is larger than the program.

    The layers must know their shapes, as after a `keras.Input`. `compile` stands outside of the block. `plan` needs no
    values. `fit` makes each variable's first value with its initializer, as Keras would have, and gives it to the
    machines, one after the other. Whoever looks at a variable before that gets its first value.

    >>> with without_values():
    ...     model = keras.Sequential([keras.Input((10**6,)), keras.layers.Dense(10**6, use_bias=False)])
    >>> model.count_params()
    1000000000000
    """
    waiting = GLOBAL_ATTRIBUTE.get()("uninitialized_variables", [], set_to_default=True)
    before = len(waiting)
    try:
        with keras.StatelessScope(initialize_variables=False) as scope:
            yield
        for variable in waiting[before:]:
            shape = tuple(variable.shape)
            make = partial(first_value, variable._initializer, shape, variable.dtype)
            options = {"trainable": variable.trainable, "name": variable.name}
            variable._initialize(without_value(shape, variable.dtype, make, **options))
            variable.__array__, variable.assign = partial(_copied, variable), partial(_assigned, variable)
            if (value := scope.get_current_value(variable)) is not None:
                variable.assign(value)  # was assigned in the block, as by `load_weights`
    except ValueError as error:
        if "stateless scope" in str(error):
            error.add_note("Inside without_values() only layers make variables: compile and load_model go below it.")
        raise
    finally:
        del waiting[before:]


def _copied(variable: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    """What NumPy asks for, as Keras's writers of files do. A copy of it would take memory."""
    del copy
    return np.asarray(variable.value.numpy(), dtype)


def _assigned(variable: Any, value: Any) -> Any:
    """What Keras's readers of files call. A tensor of a huge value would take memory."""
    is_stateless = GLOBAL_ATTRIBUTE.get()("stateless_scope") is not None
    if is_stateless or not is_huge(value) or value.shape != tuple(variable.shape):
        return type(variable).assign(variable, value)
    variable._value.assign(value)
    return value


def has_values(variables: object) -> bool:
    """Whether all of these variables have their values here: none waits for it, or has it on the machines only.

    >>> with without_values():
    ...     model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> has_values(model.variables), has_values([])
    (False, True)
    """
    own = (variable.value for variable in keras.tree.flatten(variables))
    return all(has_value(each) for each in own if isinstance(each, tf.Variable))
