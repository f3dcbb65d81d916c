"""The checks that a DistributedModel makes before anything starts.

In: a model or a resource spec. Out: the same value, an error that names the fault and its remedy, or a line in the log.
The wrapper, the driver and the reports call these checks.

>>> compiled(keras.Sequential([keras.layers.Dense(1)], name="small"))
Traceback (most recent call last):
ValueError: model 'small' is not compiled, so it has no training step yet. Call compile() first.
"""

import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from autodist_core.errors import AutodistError, did_you_mean
from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy.options import replica_devices
from autodist_core.training import SETTINGS, CompressorState
from autodist_keras import seams


def keras_model(model: Any) -> Any:
    """The model. An error says if it is no Keras model, or if this package does not support the backend or version.

    >>> keras_model(None)
    Traceback (most recent call last):
    TypeError: DistributedModel(model): expected a keras.Model. Received: builtins.NoneType.
    """
    if keras.backend.backend() != "tensorflow":
        raise AutodistError(
            f"Keras runs on the {keras.backend.backend()!r} backend; distribution needs TensorFlow. "
            "Set KERAS_BACKEND=tensorflow before keras is imported."
        )
    if not isinstance(model, keras.Model):
        raise TypeError(
            "DistributedModel(model): expected a keras.Model. "
            f"Received: {type(model).__module__}.{type(model).__name__}.{_instead_of(model)}"
        )
    seams.check()
    return model


def compressor_state(state: CompressorState | None) -> None:
    """Raise a TypeError unless this is a compressors' state or None.

    >>> compressor_state({})
    Traceback (most recent call last):
    TypeError: set_compressor_state(state): expected what compressor_state() returned, or None. Received: dict.
    """
    if state is not None and not isinstance(state, CompressorState):
        raise TypeError(
            "set_compressor_state(state): expected what compressor_state() returned, or None. "
            f"Received: {type(state).__name__}."
        )


def _instead_of(model: Any) -> str:
    if isinstance(model, type):
        return f" Pass a model, not its class: {model.__name__}(...)."
    if isinstance(getattr(model, "model", None), keras.Model):
        return " It holds one: use it, or wrap its `model`."
    if isinstance(model, str | os.PathLike | Mapping | ResourceSpec):
        if str(model).endswith((".keras", ".h5")):
            return f" Load it: keras.models.load_model({str(model)!r})."
        shown = repr(os.fspath(model)) if isinstance(model, str | os.PathLike) else "{...}"
        shown = "spec" if isinstance(model, ResourceSpec) else shown
        return f" The model is the first argument and the cluster the second: DistributedModel(model, {shown})."
    return " Models of tf_keras (Keras 2) must be ported to Keras 3." if "tf_keras" in str(type(model)) else ""


def compiled(model: Any) -> None:
    """Raise unless `compile` was called. The module's docstring has an example."""
    if not model.compiled:
        raise ValueError(f"model {model.name!r} is not compiled, so it has no training step yet. Call compile() first.")


def built(model: Any) -> None:
    """Raise unless the model's variables exist.

    >>> built(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    """
    if not model.built:
        raise ValueError(
            f"model {model.name!r} is not built: it has no variables yet to plan for. "
            "Call plan(x, y) with a batch, build the model, or plan after fit."
        )


def optimizer(model: Any) -> None:
    """Raise if Keras's own training step would have no optimizer.

    >>> model = keras.Sequential([keras.layers.Dense(1)], name="small")
    >>> model.compile(optimizer=None, loss="mse")
    >>> optimizer(model)
    Traceback (most recent call last):
    ValueError: model 'small' was compiled without an optimizer. Call compile(optimizer=...) first.
    """
    own_step = type(model).train_step is not keras.Model.train_step
    if model.compiled and model.optimizer is None and not own_step:
        raise ValueError(f"model {model.name!r} was compiled without an optimizer. Call compile(optimizer=...) first.")


def batched(model: Any, replicas: int) -> None:
    """Raise if a model takes batches of one size only: such batches cannot be split over several replicas.

    >>> batched(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), 2)
    """
    for layer in model._flatten_layers() if replicas > 1 else ():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise ValueError(
                f"layer {layer.name!r} of model {model.name!r} is stateful: it keeps a state for each row of a batch, "
                f"and needs batches of one size, but each of {replicas} replicas gets a part of every batch. Train on "
                "one device, ResourceSpec.local(cpus=1), or make the layer with stateful=False and return_state=True, "
                "and give the model its states as inputs."
            )
    # A Functional model keeps operations that were made for its inputs. A Sequential one keeps layers only. If a call
    # has built it, its input has the size of that batch: Keras takes other sizes, and so do the layers.
    keeps_operations = replicas > 1 and not isinstance(model, keras.Sequential)
    # Public: a Functional model has inputs, and a subclassed model has none.
    for tensor in (getattr(model, "inputs", None) or ()) if keeps_operations else ():
        if tensor.shape and tensor.shape[0] is not None:
            raise ValueError(
                f"input {tensor.name!r} of model {model.name!r} has a fixed batch size of {tensor.shape[0]}, but each "
                "replica gets a part of every batch. Leave the batch size open: Input(shape=...), not batch_shape=..."
            )


def step_function(model: Any, mode: str) -> str:
    """Why Keras would run another function than its own for this mode, or nothing. A call of `fit` would not run ours.

    >>> class Logging(keras.Sequential):
    ...     def make_test_function(self, force=False):
    ...         return super().make_test_function(force)
    >>> model = Logging([keras.layers.Dense(1)], name="small")
    >>> step_function(model, "train")
    ''
    >>> step_function(model, "test")
    "model 'small' has a make_test_function of its own, ..."
    """
    make, name = f"make_{mode}_function", f"{mode}_function"
    own = getattr(type(model), make) is not getattr(keras.Model, make) or not _is_known(vars(model).get(make))
    function = getattr(model, name)
    # Public: a tf.function has the Python function that it traces.
    if not own and _is_known(getattr(function, "python_function", function)):
        return ""
    return (
        f"model {model.name!r} has a {make if own else name} of its own, and a step over several devices is made in "
        f"its place. Let {mode}_step or a callback do what it does, and take it away."
    )


def _is_known(function: Any) -> bool:
    """Whether a function is Keras's, or ours, which stands in its place during a call. None is."""
    return function is None or function.__module__.partition(".")[0] in ("keras", "autodist_keras")


def without_strategy(model: Any) -> None:
    """Raise if a strategy of tf.distribute would take part: each replica's batch would be split once more.

    >>> with tf.distribute.OneDeviceStrategy("CPU:0").scope():
    ...     model = keras.Sequential([keras.layers.Dense(1)], name="small")
    >>> without_strategy(model)
    Traceback (most recent call last):
    ValueError: model 'small' was made under the scope of a OneDeviceStrategy. ...
    """
    current = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy() and model.distribute_strategy is current:
        return
    where = "is used" if tf.distribute.has_strategy() else "was made"
    kind = type(current if tf.distribute.has_strategy() else model.distribute_strategy).__name__
    raise ValueError(
        f"model {model.name!r} {where} under the scope of a {kind}. DistributedModel needs no scope: make the model, "
        "its optimizer and the DistributedModel, and call its methods, outside of `with strategy.scope():`."
    )


def graph(model: Any) -> None:
    """Raise if the model's steps must run eagerly: what runs over several devices is a graph.

    >>> model = keras.Sequential([keras.layers.Dense(1)], name="small")
    >>> model.compile("sgd", "mse", run_eagerly=True)
    >>> graph(model)
    Traceback (most recent call last):
    ValueError: model 'small' is compiled with run_eagerly=True, but a step over several devices is a graph. Call
        compile(..., run_eagerly=False). To follow the Python code of a step, train the plain model: model.fit(...).
    """
    asked = "tf.config.run_functions_eagerly(True) was called" if tf.config.functions_run_eagerly() else ""
    remedy = "Call tf.config.run_functions_eagerly(False)."
    if model.compiled and model.run_eagerly and not asked:
        asked = f"model {model.name!r} is compiled with run_eagerly=True"
        remedy = "Call compile(..., run_eagerly=False)."
    if asked:
        raise ValueError(
            f"{asked}, but a step over several devices is a graph. {remedy} To follow the Python code of a step, train "
            "the plain model: model.fit(...)."
        )


def say_if_single(spec: ResourceSpec) -> None:
    """Log that there is a single replica, over which nothing is distributed.

    >>> from unittest import TestCase
    >>> with TestCase().assertLogs("autodist") as logs:
    ...     say_if_single(ResourceSpec.local(cpus=1))
    >>> logs.records[0].getMessage().partition(",")[0]
    'single replica: localhost:CPU:0 computes the whole batch'
    """
    first, *others = replica_devices(spec)
    if not others:
        log.warning(
            "single replica: %s computes the whole batch, as with plain Keras. A resource spec says what else there "
            "is: GPUs under 'gpus', processors under 'cpus', other machines under 'nodes'.", first,
        )


def refuse_misspelt(name: str, model: Any) -> None:
    """Raise if the model does not have an attribute, and the name is probably a misspelt setting.

    >>> refuse_misspelt("stratgy", object())
    Traceback (most recent call last):
    AttributeError: DistributedModel has no setting 'stratgy'. Did you mean 'strategy'? Settings: resource_spec,
        strategy, share_memory, fused_kernels, on_failure, lost_after, tunnelled, backup_every, keep_state. An attribute
        of the Keras model is set on the model: dm.model.stratgy.
    """
    hint = did_you_mean(name, SETTINGS, likeness=0.8)
    if hint and not name.startswith("_") and not hasattr(model, name):
        raise AttributeError(
            f"DistributedModel has no setting {name!r}.{hint} Settings: {', '.join(SETTINGS)}. An attribute of the "
            f"Keras model is set on the model: dm.model.{name}."
        )


def is_own(model: Any, method: str) -> bool:
    """Whether the user has written a method of Keras's, on the model or in its class.

    >>> is_own(keras.Sequential(), "predict")
    False
    """
    return method in vars(model) or getattr(type(model), method) is not getattr(keras.Model, method)
