"""Everything a DistributedModel refuses before it starts."""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf

from autodist_core.errors import AutodistError, ResourceSpecError
from autodist_core.resource_spec import ResourceSpec
from autodist_keras import seams

_log = logging.getLogger("autodist")


def keras_model(model: Any) -> Any:
    """The model, if it is one that can be distributed, by a Keras and a TensorFlow on which this package builds."""
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


def _instead_of(model: Any) -> str:
    if isinstance(model, type):
        return f" Pass a model, not its class: {model.__name__}(...)."
    if isinstance(getattr(model, "model", None), keras.Model):
        return " It holds one: use it, or wrap its `model`."
    return " Models of tf_keras (Keras 2) must be ported to Keras 3." if "tf_keras" in str(type(model)) else ""


def local_spec(spec: ResourceSpec) -> ResourceSpec:
    """The spec, if this machine has all its devices."""
    present = len(tf.config.list_physical_devices("GPU"))
    missing = [name for name, _ in spec.gpu_devices if int(name.rsplit(":", 1)[1]) >= present]
    if missing:
        raise ResourceSpecError(
            f"{', '.join(missing)}: this machine has {present} GPU{'' if present == 1 else 's'} that TensorFlow can "
            "use. Take the others out of 'gpus', or list CPU devices in 'cpus' instead."
        )
    return spec


def replicas(spec: ResourceSpec) -> tuple[str, ...]:
    """The devices that compute: the GPUs, or without any the CPUs."""
    return tuple(name for name, _ in spec.replica_devices)


def compiled(model: Any) -> None:
    """Raise unless `compile` was called."""
    if not model.compiled:
        raise ValueError(f"model {model.name!r} is not compiled, so it has no training step yet. Call compile() first.")


def built(model: Any) -> None:
    """Raise unless the variables exist."""
    if not model.built:
        raise ValueError(
            f"model {model.name!r} is not built: it has no variables yet to plan for. "
            "Call plan(x, y) with a batch, build the model, or plan after fit."
        )


def optimizer(model: Any) -> None:
    """Raise unless Keras's own training step has an optimizer to apply."""
    own_step = type(model).train_step is not keras.Model.train_step
    if model.compiled and model.optimizer is None and not own_step:
        raise ValueError(f"model {model.name!r} was compiled without an optimizer. Call compile(optimizer=...) first.")


def batched(model: Any, replicas: int) -> None:
    """Raise if a model takes batches of one size only, which cannot be split over several replicas."""
    # Public: models of layers have inputs, others none.
    for tensor in (getattr(model, "inputs", None) or ()) if replicas > 1 else ():
        if tensor.shape and tensor.shape[0] is not None:
            raise ValueError(
                f"input {tensor.name!r} of model {model.name!r} has a fixed batch size of {tensor.shape[0]}, but each "
                "replica gets a part of every batch. Leave the batch size open: Input(shape=...), not batch_shape=..."
            )


class Identity:
    """What a captured step depends on: compared by identity, and kept alive so that identity means something."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and len(self._parts) == len(other._parts) and all(
            one is two for one, two in zip(self._parts, other._parts, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]


def identity_of_compile(model: Any) -> Identity:
    """The optimizer, losses and metrics that a captured step was made from: as in Keras, `compile` makes it anew."""
    optimizer = model.optimizer if model.compiled else None
    return Identity(optimizer, model._compile_loss, model._compile_metrics, model._loss_tracker)


def say_what_is_not_done(model: Any, spec: ResourceSpec) -> None:
    """Log what was asked for in `compile` and is not done, and that nothing is distributed where it is not."""
    lines = without_effect(model)
    if len(replicas(spec)) == 1:
        lines.append(
            f"single replica: {replicas(spec)[0]} computes the whole batch, as with plain Keras. A resource spec says "
            "what else there is: GPUs under 'gpus', processors under 'cpus', other machines under 'nodes'"
        )
    if lines:
        _log.warning("%s.", "; ".join(lines))


def without_effect(model: Any) -> list[str]:
    """What was asked for in `compile` and is not done."""
    lines = []
    if model.compiled and model.jit_compile:
        lines.append("jit_compile=True: the distributed step runs without XLA")
    if model.compiled and model.run_eagerly:
        lines.append("run_eagerly=True: the distributed step is a graph all the same; debug on the plain model")
    return lines
