"""The plan of a model: a table of its variables, and notes on differences from one device.

In: a model, its captured step (or the assumed one), and the compiled strategy. Out: a `Plan`, which prints as text and
shows as a table in a notebook. `DistributedModel.plan` calls this module, and `verify` uses its notes.

>>> from autodist_core.resource_spec import ResourceSpec
>>> from autodist_keras import DistributedModel
>>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
>>> dm = DistributedModel(model, ResourceSpec.local(cpus=2), "PS", share_memory=False)
>>> print(plan_of(dm, {}).splitlines()[3])
  dense/kernel : f32[3,1]  ps(localhost:CPU:0)  12 B  24 B/step
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from autodist_core.errors import amount, some
from autodist_core.kernel import arrange
from autodist_core.plan import INEXACT, Plan
from autodist_core.reports.reasons import Reason, reached
from autodist_core.reports.step_plan import compiled_by_xla, drawing_notes, drawn_in, inexact_notes, planned
from autodist_core.step.draws import Draw
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.step.naming import node_of
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.written import written
from autodist_keras import checks
from autodist_keras.capture import batch_norm_kernel
from autodist_keras.capture.draws import place_of, place_of_draw
from autodist_keras.capture.mixing_notes import Notes
from autodist_keras.capture.optimizer_kernels import kernels_of, used_in
from autodist_keras.capture.optimizers import optimizers_of
from autodist_keras.capture.variables import ModelVariables, is_sparse_layer_variable, tf_variable_of
from autodist_keras.reports.first_batches import first_batches
from autodist_keras.training.batches import read_batch
from autodist_keras.training.data_ways import FIT, foretold

_ASSUMED = (
    "without a batch it is not known which gradients are sparse (taken to be: those of Embedding layers) and which "
    "variables cannot be split: plan(x, y) captures the step"
)


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


def plan_of(distributed: Any, given: Mapping[str, Any]) -> Plan:
    """The plan of a DistributedModel: of its captured step, of a batch, or assumed if no data is given.

    A captured step that a training would refuse is refused here, too. The module's docstring has an example.
    """
    model, driver, settings = distributed.model, distributed._driver, distributed._driver.settings
    checks.batched(model, settings.replicas)
    captured, data, examples = driver.captured, given.get("x"), 0
    if given:
        batch = read_batch(first_batches("plan", model, driver, given)[0])
        captured, examples = driver.captured_for(batch), batch.total
    item = captured.item if captured else assumed_item(model)
    strategy = driver.training.compile_strategy(item)
    notes = captured.other_notes if captured else ()
    if captured and FIT not in driver.data.ways:
        # Loose replicas are fed what others would draw from a dataset.
        loose = arrange(item, strategy, settings.share_memory).is_loose
        way = foretold(settings.resource_spec, None if loose else data)
        notes = (*notes, *((f"the data of a fit: {way}",) if way else ()))
    notes = (*notes, *driver.data.notes, *_of_unknown_length(model, data))
    mixing = captured.notes if captured else Notes()

    def more(strategy: CompiledStrategy) -> Iterator[str]:
        if settings.fuses:
            yield from _kernel_notes(model, item, mixing)
        if len(strategy.replicas) > 1:
            yield from (*notes, *mixing.trained, *mixing.reported, *mixing.unknown)
        yield from _of_each_replica(model, item, strategy, mixing)
        if len(strategy.replicas) > 1:
            yield from _rounding_notes(model, item)
        if model.compiled and model.jit_compile:
            yield from compiled_by_xla(item, arrange(item, strategy, settings.share_memory).compiled_together)

    with captured.lines.told() if captured else nullcontext():
        return planned(
            item, strategy, settings.share_memory, more, written(settings.strategy),
            "" if item.gradients else _ASSUMED, examples=examples, spec=settings.resource_spec,
        )


def inexact(distributed: Any) -> tuple[str, ...]:
    """Those notes on the current training that explain other numbers. `DistributedModel.inexact` has an example."""
    captured, strategy = distributed._driver.captured, distributed._driver.training.trained
    if captured is None or strategy is None:
        return ()
    item, notes = captured.item, captured.notes
    own = inexact_notes(item, strategy, distributed._driver.settings.share_memory)
    mixed = notes.trained if len(strategy.replicas) > 1 else ()
    return (*own, *mixed, *_of_each_replica(distributed.model, item, strategy, notes))


def _of_each_replica(model: Any, item: GraphItem, strategy: CompiledStrategy, mixing: Notes) -> Iterator[str]:
    """Notes on each replica's own batch statistics and random numbers."""
    if len(strategy.replicas) == 1:
        return
    layers = list(model._flatten_layers())
    names = {id(entry.tf_variable): entry.spec.name for entry in ModelVariables(model, optimizers_of(model)).entries}

    def name_of(variable: Any) -> str | None:
        return names.get(id(tf_variable_of(variable)))

    step = StepIndex.of(item) if item.gradients else None
    norms = [
        layer.name for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
        and (layer.trainable if step is None else _is_of_batch(step, name_of(layer.moving_mean)))
    ]
    if norms:
        yield Reason.of(
            f"{INEXACT}: batch statistics are each replica's own in {some(norms)}; moving averages are combined "
            "(synchronized=True: the whole batch's)", mixing.statistics,
        )
    if step is not None:
        yield from drawing_notes(item, lambda draw: _place(step, layers, draw))
    elif drawing := [layer.name for layer in layers if _draws(layer)]:
        yield drawn_in(drawing)


def _place(step: StepIndex, layers: Sequence[Any], draw: Draw) -> str:
    kinds = {step.variables[name].kind for name in reached(step, Reason.of("", draw.path[:1]), 1)}
    return "the metrics" if kinds == {"metric"} else place_of_draw(layers, draw)


def _kernel_notes(model: Any, item: GraphItem, mixing: Notes) -> Iterator[str]:
    """Notes on the kernels that update dense variables and normalize, and on the types for which they are not used."""
    kernels = kernels_of(optimizers_of(model))
    types = dict.fromkeys(each.dtype for each in item.variables if each.trainable and not each.is_sparse)
    used = {name: [dtype for dtype in types if used_in(each, dtype)] for name, each in kernels.items()}
    if names := [name for name in kernels if used[name]]:
        yield f"dense variables are updated by {' and '.join(names)} (fused_kernels=False: by Keras's ops)"
    for name in kernels:
        if others := [dtype for dtype in types if dtype not in used[name]]:
            yield (
                f"variables of {' and '.join(others)} are updated by Keras's ops, not by {name}, whose numbers would "
                "differ by more than rounding"
            )
    assumed = [] if item.gradients else [layer.name for layer in batch_norm_kernel.layers_in_kernel(model)]
    if norms := [*mixing.in_kernel, *assumed]:
        yield f"normalized by {batch_norm_kernel.KERNEL}: {some(norms)} (fused_kernels=False: by Keras's ops)"


def _rounding_notes(model: Any, item: GraphItem) -> Iterator[str]:
    """Notes on types of so few bits that the order of a sum over the examples shows in the numbers."""
    layers = list(model._flatten_layers(include_self=False))
    names = {layer.name for layer in layers}
    for dtype in ("float16", "bfloat16"):
        computing = [layer.name for layer in layers if layer.weights and layer.compute_dtype == dtype]
        # A layer of another policy casts by itself. Keras casts the inputs of those of this policy outside of them.
        casting = (place_of(name, names) or "the step itself" for name in _casts(item, dtype))
        computing = computing or list(dict.fromkeys(casting))
        weights = [each.name for each in item.variables if each.trainable and each.dtype == dtype]
        if computing or weights:
            subjects = [some(computing)] if computing else []
            subjects += [amount(len(weights), "weight")] if weights else []
            yield f"sums over the examples, in another order, differ by rounding of {dtype}: {' and '.join(subjects)}"
    if any(isinstance(each, keras.optimizers.LossScaleOptimizer) for each in optimizers_of(model)):
        yield f"{INEXACT}: a replica's smaller loss may overflow at another step, which then reduces the loss scale"


def _casts(item: GraphItem, dtype: str) -> Iterator[str]:
    """The operations that cast to a type what was not of that type before."""
    step, kind = StepIndex.of(item), tf.as_dtype(dtype).as_datatype_enum
    after: set[str] = set()
    for node in step.graph.node:
        if not after.isdisjoint(step.sources(node.name)):
            after.add(node.name)
        elif node.op == "Cast" and node.attr["DstT"].type == kind:
            after.add(node.name)
            yield node.name


def _of_unknown_length(model: Any, data: Any) -> Iterator[str]:
    """The note on data of which Keras finds the end only when it asks for one batch more."""
    counted = isinstance(data, tf.data.Dataset) and int(data.cardinality()) == tf.data.experimental.UNKNOWN_CARDINALITY
    counted = counted or (isinstance(data, keras.utils.PyDataset) and data.num_batches is None)
    if (counted or inspect.isgenerator(data)) and not model.jit_compile:
        yield (
            f"{INEXACT}: of data of unknown length, one device counts optimizer.iterations once more at the end of an "
            "epoch, and here each batch counts once (give steps_per_epoch)"
        )


def _is_of_batch(step: StepIndex, variable: str | None) -> bool:
    """Whether compute writes a value of the batch to a variable. What it makes of constants is alike on all."""
    writers = [
        node for node, touched in step.touches.items() if any(t.writes and t.variable == variable for t in touched)
    ]
    inputs = {node_of(tensor.name) for tensor in step.item.inputs}
    return variable in step.written_by_compute and not inputs.isdisjoint(step.cone(writers))


def _draws(layer: Any) -> bool:
    """Whether a layer will draw random numbers in training, according to its settings."""
    strengths = ("rate", "stddev", "dropout", "recurrent_dropout", "factor")
    return bool(layer._seed_generators) and any(bool(getattr(layer, name, None)) for name in strengths)
