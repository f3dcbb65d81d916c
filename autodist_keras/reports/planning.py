"""The plan of a model: a table of its variables, and notes on differences from one device.

In: a model, its captured step (or the assumed one), and the compiled strategy. Out: a `Plan`, which prints as text and
shows as a table in a notebook. `DistributedModel.plan` calls this module, and `verify` uses its notes.

>>> from autodist_core.resource_spec import ResourceSpec
>>> from autodist_core.strategy import PS
>>> from autodist_core.strategy.compiler import StrategyCompiler
>>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
>>> item, spec = assumed_item(model), ResourceSpec.local(cpus=2)
>>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
>>> print(plan(model, item, strategy, False, False, (), Notes()).splitlines()[3])
  dense/kernel : f32[3,1]  ps(localhost:CPU:0)  12 B  24 B/step
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import keras

from autodist_core.kernel import arrange, drawn_by_replicas, examine
from autodist_core.plan import INEXACT, Plan, notes, table
from autodist_core.step.draws import Draw, Stream
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.synchronizers import AllReducePlan
from autodist_keras import checks
from autodist_keras.capture.coupled import Notes
from autodist_keras.capture.fused_updates import kernels_of
from autodist_keras.capture.tracing import optimizers_of
from autodist_keras.capture.variables import ModelVariables, is_sparse_layer_variable, tf_variable_of


def assumed_item(model: Any) -> GraphItem:
    """A built model's training step, as far as it is known without a batch.

    The tables of Embedding layers are assumed to have sparse gradients.

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(5, 3, name="table")])
    >>> [(variable.name, variable.is_sparse) for variable in assumed_item(model).variables]
    [('table/embeddings', True)]
    """
    checks.built(model)
    sparse = {id(tf_variable_of(v)): is_sparse_layer_variable(model, v) for v in model.trainable_variables}
    return GraphItem(tuple(
        replace(
            entry.spec, trainable=id(entry.tf_variable) in sparse, is_sparse=sparse.get(id(entry.tf_variable), False),
        )
        for entry in ModelVariables(model, optimizers_of(model)).entries
    ))


def plan(
    model: Any, item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None, fused_updates: bool,
    remarks: Iterable[str], coupled: Notes, name: str = "",
) -> Plan:
    """The table for a captured or assumed step, and the notes. The module's docstring has an example.

    `remarks`, and the notes on computations that mix examples (`coupled`), are shown for several replicas only. A
    captured step that a training would refuse is refused here, too. `name` is the strategy's builder as text.
    """
    arranged = arrange(item, strategy, share_memory)
    if item.gradients:
        examine(item, arranged, share_memory)
    strategy, shares, lines = arranged.strategy, arranged.shares_memory, []
    if shares:
        lines.append(
            "the replicas share one copy of the weights: nothing travels or is split (share_memory=False: as the "
            "strategy has it)"
        )
    lines += [f"{name} stays whole: {why} needs all of it" for name, why in arranged.whole.items()]
    if arranged.shares_by_machine:
        lines.append("the replicas of a machine share one copy of the weights (share_memory=False: each has its own)")
    if not item.gradients:
        lines.append(
            "without a batch it is not known which gradients are sparse (taken to be: those of Embedding layers) and "
            "which variables cannot be split: plan(x, y) captures the step"
        )
    rows = [
        plan.variable.name for plan in strategy.variables
        if plan.variable.is_sparse and isinstance(plan.synchronizer, AllReducePlan)
    ]
    if rows and not shares and len(strategy.replicas) > 1:
        lines.append(
            f"of {_some(rows)} only rows travel, as they would to a server; every replica updates its own copy"
        )
    kernels = kernels_of(optimizers_of(model)) if fused_updates else ()
    if kernels:
        lines.append(f"dense variables are updated by {' and '.join(kernels)} (fused_updates=False: by Keras's ops)")
    lines += (*remarks, *coupled.trained, *coupled.reported, *coupled.unknown) if len(strategy.replicas) > 1 else ()
    lines += [*_of_each_replica(model, item, strategy), *checks.without_effect(model)]
    return table(strategy, item, arranged.memories, lines, name)


def explained(
    model: Any, item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None, coupled: Notes
) -> tuple[str, ...]:
    """Those notes of the plan that explain other numbers than one device's. `DistributedModel.inexact` shows them."""
    found = [note for note in notes(arrange(item, strategy, share_memory).strategy) if note.startswith(INEXACT)]
    found += coupled.trained if len(strategy.replicas) > 1 else ()
    return (*found, *_of_each_replica(model, item, strategy))


def _of_each_replica(model: Any, item: GraphItem, strategy: CompiledStrategy) -> Iterator[str]:
    """Notes on each replica's own batch statistics and random numbers."""
    if len(strategy.replicas) == 1:
        return
    layers = list(model._flatten_layers())
    names = {id(entry.tf_variable): entry.spec.name for entry in ModelVariables(model, optimizers_of(model)).entries}

    def name_of(variable: Any) -> str | None:
        return names.get(id(tf_variable_of(variable)))

    step = StepIndex(item) if item.gradients else None
    norms = [
        layer.name for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
        and (layer.trainable if step is None else name_of(layer.moving_mean) in step.written_by_compute)
    ]
    if norms:
        yield (
            f"batch statistics are each replica's own in {_some(norms)}; moving averages are combined "
            "(synchronized=True: the whole batch's)"
        )
    drawn = () if step is None else drawn_by_replicas(step)
    drawing = [layer.name for layer in layers if _draws(layer)] if step is None else list(dict.fromkeys(
        _where(layers, draw) for draw in drawn if draw.stream is not Stream.FIXED
    ))
    if drawing:
        yield f"each replica draws its own random numbers in {_some(drawing)}; replica 0 those of one device"
    fixed = list(dict.fromkeys(f"{draw.op} in {_where(layers, draw)}" for draw in drawn if draw.stream is Stream.FIXED))
    if fixed:
        yield (
            f"all replicas draw the same random numbers by {_some(fixed)}: TensorFlow gives it no seed that could be "
            "another one for each replica (the draws of keras.random have one)"
        )


def _where(layers: list[Any], draw: Draw) -> str:
    """The layer that draws random numbers, found by the scopes in the operation's name; else the operation's name."""
    names = {layer.name for layer in layers}
    for scope in reversed("/".join(draw.path).split("/")):
        # A layer opens its scope when it is built and again when it is called. TensorFlow numbers the second scope.
        for name in (re.sub(r"_[0-9]+$", "", scope), scope):
            if name in names:
                return name
    return draw.path[-1]


def _draws(layer: Any) -> bool:
    """Whether a layer will draw random numbers in training, according to its settings."""
    strengths = ("rate", "stddev", "dropout", "recurrent_dropout", "factor")
    return bool(layer._seed_generators) and any(bool(getattr(layer, name, None)) for name in strengths)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
