"""Training one reference model, plainly and distributed, from the same seed on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import keras
import numpy as np
import tensorflow as tf

from tests.support.compare import Trained, named
from tests.support.models import BATCH, Data, ReferenceModel

SEED = 20
EPOCHS = 3


def trained(model: keras.Model, history: Mapping, optimizers: list) -> Trained:
    """What the model and its optimizers hold now, with a History's numbers."""
    return Trained(
        weights=named(model.weights),
        optimizer=named(variable for optimizer in optimizers for variable in optimizer.variables),
        history={name: np.asarray(values) for name, values in history.items()},
    )


def seeded(build: Callable[[], keras.Model]) -> keras.Model:
    """The same model with the same initial weights, each time."""
    keras.utils.set_random_seed(SEED)
    return build()


def fit(front, data: Data, **overrides) -> Mapping:
    """`fit` in the order of the data unless told otherwise; History's numbers."""
    keras.utils.set_random_seed(SEED + 1)
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0, **overrides}
    return front.fit(data.x, data.y, sample_weight=data.sample_weight, **options).history


def build_all(model: keras.Model, data: Data) -> None:
    """Build what Keras builds while it traces a step, only to trace it once more: half of a short training's time."""
    if not model.built or type(model).train_step is not keras.Model.train_step:
        return
    with keras.name_scope(model.optimizer.name, caller=model.optimizer):
        model.optimizer.build(model.trainable_variables)
    x, y, weight = (
        keras.tree.map_structure(lambda array: array[:1], part) if part is not None else None
        for part in (data.x, data.y, data.sample_weight)
    )
    predicted = model(x)
    model.compute_loss(x, y, predicted, weight)
    model.compute_metrics(x, y, predicted, weight)
    model.reset_metrics()


def train_plain(
    reference: ReferenceModel, optimizer: str, *, replicas: int = 1, data: Data | None = None, **overrides
) -> Trained:
    """One-device training with plain Keras; where batch statistics are per replica, as so many replicas see them."""
    stand_in = reference.reference if replicas > 1 else None
    model = seeded(reference.build if stand_in is None else lambda: stand_in(replicas))
    arguments = reference.compile_arguments(optimizer)
    if stand_in is not None:
        arguments |= {"run_eagerly": True}
    model.compile(**arguments)
    data = data or reference.data()
    build_all(model, data)
    history = fit(model, data, **overrides)
    return trained(model, history, reference.optimizers(model))


@cache
def _cached_plain(reference: ReferenceModel, optimizer: str, replicas: int, graph_optimizer: bool) -> Trained:
    return train_plain(reference, optimizer, replicas=replicas)


def plain(reference: ReferenceModel, optimizer: str, replicas: int = 1) -> Trained:
    """The same as `train_plain` with its defaults, computed once in a run of the tests.

    Once with TensorFlow's graph optimizer and once without it, which may round differently.
    """
    off = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    return _cached_plain(reference, optimizer, replicas if reference.reference else 1, not off)


def permuted_within_batches(data: Data, batch: int = BATCH) -> Data:
    """The same batches with their rows in another order: the same training but for rounding."""
    examples = len(keras.tree.flatten(data.x)[0])
    random = np.random.default_rng(3)
    starts = range(0, examples, batch)
    return data.rows(np.concatenate([random.permutation(np.arange(s, min(s + batch, examples))) for s in starts]))
